"""Persisted records: manifests, launches, keys, names and paths."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.stored import ENVIRONMENT, LAUNCH_KEY, make_record
from tests.support.stored import rank_entry as entry
from tests.support.stored import rank_manifest as manifest
from warmrank.cache_store.cache_dir.node_files import NODE
from warmrank.cache_store.canonical import canonical_json, key_of
from warmrank.cache_store.errors import (
    Conflict,
    Corrupt,
    EvictRefused,
    NewerFormat,
    NotInStore,
    StoreError,
    StoreUnavailable,
    Untrusted,
    UnusableCache,
)
from warmrank.cache_store.records.manifest import (
    CaptureEntry,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
    RequestEntry,
    parse_launch_record,
    parse_manifest,
    partition_key,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
COMPONENTS = st.dictionaries(TEXT, TEXT, max_size=3)


def ref(rank: int) -> PartitionRef:
    name = f"world2global_rank{rank}"
    return PartitionRef(partition=name, rank=rank, manifest_key="4" * 64, manifest_sha256="5" * 64)


@st.composite
def manifests(draw: st.DrawFn) -> PartitionManifest:
    functions = draw(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), unique=True, max_size=4))
    requests = [
        RequestEntry(
            function=name, key=draw(HEX), components=draw(COMPONENTS), runtime_state=draw(COMPONENTS)
        )
        for name in functions
    ]
    artifacts = [
        entry(
            function=name,
            path=f"c/{name}/compiled_module",
            sha256=draw(HEX),
            size_bytes=draw(st.integers(0, 1 << 32)),
        )
        for name in functions
    ]
    captures = [CaptureEntry(function=name, signature=draw(TEXT)) for name in functions]
    world_size = draw(st.integers(1, 9))
    return manifest(
        rank=draw(st.integers(0, world_size - 1)),
        world_size=world_size,
        environment=draw(COMPONENTS),
        requests=tuple(requests),
        artifacts=tuple(artifacts),
        captures=tuple(captures),
    )


@st.composite
def records(draw: st.DrawFn) -> LaunchRecord:
    refs = tuple(
        PartitionRef(partition=f"rank{rank}", rank=rank, manifest_key=draw(HEX), manifest_sha256=draw(HEX))
        for rank in draw(st.permutations(range(draw(st.integers(1, 4)))))
    )
    elsewhere = {ref.rank: draw(COMPONENTS) for ref in refs[: draw(st.integers(0, len(refs)))]}
    return make_record(refs, launch_key=draw(HEX), environment=draw(COMPONENTS), elsewhere=elsewhere)


@given(manifests())
def test_manifest_round_trips(value):
    assert parse_manifest(value.to_bytes(), "here") == value


def test_manifest_that_is_older_than_runtime_state_parses_and_keeps_its_bytes():
    asked = RequestEntry(function="f", key="1" * 64, components={"a": "b"})
    data = manifest(requests=(asked,)).to_bytes()
    assert b"runtime_state" not in data
    read = parse_manifest(data, "here")
    assert read.requests[0].runtime_state == {}
    assert read.to_bytes() == data


@given(records())
def test_launch_record_round_trips(value):
    assert parse_launch_record(value.to_bytes(), "here") == value


@given(st.binary(max_size=200))
def test_parse_manifest_takes_no_garbage(data):
    with pytest.raises(StoreError):
        parse_manifest(data, "here")


@pytest.mark.parametrize(
    "path",
    [
        "compiled_module", "c/decode/other_module", "c/decode/compiled_module.0",
        "c/decode/compiled_module.tmp", ".signers/decode/compiled_module", "c/.decode/compiled_module",
    ],
)  # fmt: skip
def test_artifact_path_of_no_variant_is_refused(path):
    with pytest.raises(ValidationError, match="path"):
        entry(path=path)


def test_parse_manifest_refuses_a_newer_format_by_name():
    with pytest.raises(NewerFormat, match=r"format 3.*upgrade warmrank"):
        parse_manifest(b'{"format":3,"whatever":1}', "here")


MANIFEST = json.loads(manifest(rank=1, world_size=2).to_bytes())
RECORD = json.loads(make_record((ref(0), ref(1)), elsewhere={1: {"torch": "2.13.1"}}).to_bytes())
NODE_FILE = {
    **MANIFEST["artifacts"][0],
    "scope": "node",
    "path": f"{NODE}/triton/a/kernel.so",
    "function": "triton",
}
REFS, ELSEWHERE = RECORD["partitions"], RECORD["others"][0]


@pytest.mark.parametrize(
    ("parse", "document", "says"),
    [
        (parse_manifest, {**MANIFEST, "artifacts": [NODE_FILE]}, "manifest of format 1"),
        (parse_manifest, {**MANIFEST, "format": 2, "artifacts": [{**NODE_FILE, "function": "x"}]}, "no file"),
        (parse_manifest, {**MANIFEST, "rank": 2}, "rank 2 is not below world size 2"),
        (parse_manifest, {**MANIFEST, "artifacts": MANIFEST["artifacts"] * 2}, "compiled_module"),
        (
            parse_manifest,
            {**MANIFEST, "artifacts": [
                {**MANIFEST["artifacts"][0], "path": f"c/f/compiled_module.{number}", "size_bytes": 16 << 30}
                for number in range(1, 6)
            ]},
            "bytes together",
        ),
        (parse_manifest, {**MANIFEST, "created": "2026-01-31T12:00:00+01:00"}, "no time in UTC"),
        (parse_manifest, {**MANIFEST, "format": 0}, "format"),
        (parse_launch_record, {**RECORD, "format": 1}, "record of format 1"),
        (parse_launch_record, {**RECORD, "others": [ELSEWHERE, ELSEWHERE]}, "each once, and never"),
        (parse_launch_record, {**RECORD, "others": [{**ELSEWHERE, "ranks": [0]}]}, "each once, and never"),
        (parse_launch_record, {**RECORD, "others": [{**ELSEWHERE, "ranks": [2]}]}, "not below world size 2"),
        (parse_launch_record, {**RECORD, "partitions": REFS[:1]}, "not each of 0..1 once"),
        (
            parse_launch_record,
            {**RECORD, "partitions": [REFS[0], {**REFS[1], "partition": REFS[0]["partition"]}]},
            "appears twice",
        ),
    ],
)  # fmt: skip
def test_document_that_contradicts_itself_is_corrupt(parse, document, says):
    with pytest.raises(Corrupt, match=says):
        parse(canonical_json(document), "here")


OTHER = {"torch": "2.13.1"}


def test_launch_record_of_two_environments_is_newer_to_earlier_releases():
    record = make_record((ref(0), ref(1)), elsewhere={1: OTHER})
    assert json.loads(record.to_bytes())["format"] == 2
    assert record.made_in(OTHER) == (ref(1),)
    assert record.made_in(ENVIRONMENT) == (ref(0),)
    assert record.made_in({}) == ()


@pytest.mark.parametrize(
    "other",
    [
        manifest(partition="world1global_rank1"),
        manifest(artifacts=()),
        manifest(artifacts=(entry(provenance="8" * 64),)),
        manifest(artifacts=(entry(function="Llama.prefill"),)),
        manifest(artifacts=(entry(path="c/decode/compiled_module.1"),)),
    ],
    ids=["partition", "fewer", "provenance", "function", "path"],
)
def test_partition_key_depends_on_what_determines_the_bytes(other):
    assert partition_key(LAUNCH_KEY, other) != partition_key(LAUNCH_KEY, manifest())


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(VALUES)
def test_canonical_json_round_trips(value):
    assert json.loads(canonical_json(value)) == value


@pytest.mark.parametrize("value", [{1: "a"}, [{"a": {None: 1}}]])
def test_canonical_json_refuses_keys_that_json_would_convert(value):
    with pytest.raises(TypeError, match="is a string"):
        canonical_json(value)


COMPONENT_SETS = st.dictionaries(TEXT, TEXT, max_size=4)


@given(COMPONENT_SETS, COMPONENT_SETS)
def test_key_of_differs_exactly_with_its_components(one, other):
    assert (key_of(one) == key_of(other)) == (one == other)


def test_key_of_is_pinned():
    # A change of this value makes every store miss: it needs a new format.
    assert key_of({"torch": "2.13.0"}) == "851b8dbc83237080a80818d773346b6db2902e26e79f082f70215e36b7fce0e7"


ALL: list[StoreError] = [
    StoreUnavailable(what="store", where="/s", reason="No space left on device"),
    Corrupt(what="blob", where="cas/1", expected="sha256 a", actual="sha256 b"),
    NewerFormat(what="manifest", where="ac/1", found=2, supported=1),
    Untrusted(reason="unsigned", what="manifest", where="ac/1", detail="no signature", remedy="sign it"),
    NotInStore(what="blob", where="cas/1"),
    Conflict(what="manifest", where="ac/1", expected="a", actual="b", remedy="publish again"),
    EvictRefused(what="store", where="/s", reason="the listing is empty", remedy="check the store"),
    UnusableCache(what="file", where="/c", expected="mode 0600", actual="mode 0644", remedy="chmod"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_error_keeps_its_fields_through_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert (copy.fields(), str(copy)) == (error.fields(), str(error))
