"""Node artifacts in manifests: their paths, what is stored of them, and documents older than they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.stored import CREATED, ENVIRONMENT, LAUNCH_KEY
from warmrank.cache_store.cache_dir.node_files import NodeFile, is_reserved
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.records.manifest import (
    ArtifactEntry,
    PartitionManifest,
    parse_manifest,
    partition_key,
)
from warmrank.worker.node_collecting import entries
from warmrank.worker.rank.manifests import with_node_files

DIGEST = digest_bytes(b"kernel")
FILE = NodeFile(cache="operators", relative="kernel_cache/Ascend910/add.o", digest=DIGEST)
RANK_ENTRY: dict[str, Any] = {
    "function": "Llama.decode",
    "path": "Llama_0f/world1global_rank0/decode/compiled_module",
    "request_key": "1" * 64,
    "provenance": "2" * 64,
    "sha256": "3" * 64,
    "size_bytes": 7,
}


def manifest(**changes: Any) -> PartitionManifest:
    fields: dict[str, Any] = {
        "partition": "world1global_rank0",
        "rank": 0,
        "world_size": 1,
        "environment": ENVIRONMENT,
        "requests": (),
        "artifacts": (ArtifactEntry(**RANK_ENTRY),),
        "captures": (),
        "created": CREATED,
    }
    return PartitionManifest(**(fields | changes))


def node_entry(**changes: Any) -> ArtifactEntry:
    (entry,) = entries([FILE])
    return ArtifactEntry(**(dict(entry) | changes))


def test_older_manifest_parses_and_keeps_its_bytes_and_key():
    data = manifest().to_bytes()
    found = parse_manifest(data, "here")
    assert found.to_bytes() == data
    assert found.artifacts[0].scope == "rank"
    # Of a release without scopes.
    assert (
        partition_key(LAUNCH_KEY, found) == "91760e350019751b94ef8b8f23a600ac9ba0d1ceb83ab124392ddb0c1375e837"
    )


def test_manifest_with_node_artifacts_is_of_format_2_and_round_trips():
    value = with_node_files(manifest(), [FILE])
    document = json.loads(value.to_bytes())
    assert (document["format"], document["artifacts"][1]["scope"]) == (2, "node")
    found = parse_manifest(value.to_bytes(), "here")
    assert (found, found.node_files()) == (value, (FILE,))


def test_format_1_has_no_node_artifacts():
    document = json.loads(with_node_files(manifest(), [FILE]).to_bytes())
    with pytest.raises(Corrupt, match="node artifacts in a manifest of format 1"):
        parse_manifest(json.dumps(document | {"format": 1}).encode(), "here")


@pytest.mark.parametrize(
    "path",
    [
        "node/operators/../escape",
        "node/operators//x",
        "/node/operators/x",
        "node/operators",
        "node/other/x",
        "node/Operators/x",
        "elsewhere/operators/x",
        "node/operators/a\\b",
        "node/operators/new\nline",
        "node/operators/" + "x" * 256,
        "Llama_0f/world1global_rank0/decode/compiled_module",
    ],
)
def test_node_entry_with_another_path_is_refused(path: str):
    with pytest.raises(ValidationError, match="path"):
        node_entry(path=path)


@pytest.mark.parametrize("directory", ["node/operators", "Node/operators/kernel_cache", "node"])
def test_rank_artifacts_may_lie_below_a_directory_called_node(directory: str):
    entry = ArtifactEntry(**(RANK_ENTRY | {"path": f"{directory}/compiled_module"}))
    of_rank = manifest(artifacts=(entry,))
    assert parse_manifest(of_rank.to_bytes(), "here").artifacts == (entry,)
    file = NodeFile(cache="operators", relative="compiled_module", digest=DIGEST)
    assert with_node_files(of_rank, [file]).node_files() == (file,)


@pytest.mark.parametrize("name", [".unverified", ".signers/x", ".warmrank-x", "a.lock", "locks/x", ".bashrc"])
def test_node_entry_with_the_name_of_a_mark_or_a_lock_is_refused(name: str):
    with pytest.raises(ValidationError, match="path"):
        node_entry(path=f"node/operators/{name}")


RELATIVE = st.lists(st.from_regex(r"[a-zA-Z0-9_.]{1,8}", fullmatch=True), min_size=1, max_size=4)


@given(RELATIVE.filter(lambda parts: not any(map(is_reserved, parts))).map("/".join))
def test_every_ordinary_path_below_a_node_cache_round_trips(relative: str):
    value = with_node_files(manifest(), [NodeFile(cache="mine", relative=relative, digest=DIGEST)])
    assert parse_manifest(value.to_bytes(), "here").node_files()[0].relative == relative
