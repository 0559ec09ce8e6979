"""What somebody who can write into the store may put there: refused, and nothing of it is laid out."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.support.hostile import (
    MUTATIONS,
    joined,
    mutated_json,
    split,
    with_header,
    with_payload,
    with_signature,
)
from tests.support.stored import (
    LAUNCH_KEY,
    make_partition,
    make_record,
    open_store,
    rank_entry,
    rank_manifest,
    stored,
    tree,
)
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreError, Untrusted
from warmrank.cache_store.layout import manifest_name
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES
from warmrank.cache_store.paths import collision, path_fault
from warmrank.cache_store.records.manifest import (
    MAX_COMPONENTS,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_PARTITION_BYTES,
    MAX_TEXT_CHARS,
    PartitionManifest,
    PartitionRef,
    parse_manifest,
)
from warmrank.cache_store.signing.keyring import Revocation, Signer, generate_key_pair, key_id
from warmrank.cache_store.signing.trust import (
    ENVELOPE_FORMAT,
    MAX_HEADER_BYTES,
    DocumentKind,
    Trust,
    TrustPolicy,
)

pytestmark = pytest.mark.faults

SEED = 11
MUTATIONS_A_ROUND = 500
OTHER_KEY = "9" * 64
TRUSTED, STRANGER, REVOKED = (generate_key_pair(name) for name in ("ci", "stranger", "gone"))
REVOCATIONS = {key_id(REVOKED.public_key): Revocation(key_id=key_id(REVOKED.public_key), reason="stolen")}
ED25519_ORDER = (1 << 252) + 27742317777372353535851937790883648493


def reader(policy: TrustPolicy = "require") -> Trust:
    trusted = {"ci": TRUSTED.public_key, "gone": REVOKED.public_key}
    return Trust(policy=policy, trusted=trusted, revoked=REVOCATIONS)


def seal(
    key: str, payload: bytes, *, signer: Signer | None = TRUSTED, kind: DocumentKind = "manifest"
) -> bytes:
    return Trust(policy="off", signer=signer).seal(kind, key, payload)


def impostor(name: str) -> Signer:
    return Signer(name=name, private_key=STRANGER.private_key)


@dataclass(frozen=True)
class Scene:
    """A store with one partition, honestly published."""

    root: Path
    cache: Path
    key: str
    payload: bytes

    @property
    def genuine(self) -> bytes:
        return seal(self.key, self.payload)

    @property
    def fields(self) -> dict[str, Any]:
        value = json.loads(self.payload)
        assert isinstance(value, dict)
        return value

    def signed(self, **changes: Any) -> bytes:
        """What the trusted key would sign if its owner were bad, or broken."""
        return seal(self.key, canonical_json(self.fields | changes))

    def artifact(self, **changes: Any) -> bytes:
        first, *others = self.fields["artifacts"]
        return self.signed(artifacts=[first | changes, *others])

    def paths(self, *paths: str) -> bytes:
        first = self.fields["artifacts"][0]
        return self.signed(artifacts=[first | {"path": path} for path in paths])

    def put(self, data: bytes) -> PartitionRef:
        path = self.root / manifest_name(self.key)
        path.chmod(0o600)
        path.write_bytes(data)
        fields = self.fields
        return PartitionRef(
            partition=fields["partition"],
            rank=fields["rank"],
            manifest_key=self.key,
            manifest_sha256=digest_bytes(data).sha256,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    root, source = tmp_path / "store", tmp_path / "source"
    manifest = make_partition(source)
    store = open_store(root, Trust(policy="require", signer=TRUSTED))
    key = store.publish_partition(LAUNCH_KEY, manifest, source).key
    (tmp_path / "cache").mkdir(mode=0o700)
    return Scene(root=root, cache=tmp_path / "cache", key=key, payload=manifest.to_bytes())


def malleable(scene: Scene) -> bytes:
    """The same signature with the group's order added to its second half, which a lax verifier takes."""
    value = bytes.fromhex(split(scene.genuine)[0]["signature"]["value"])
    scalar = int.from_bytes(value[32:], "little") + ED25519_ORDER
    return with_signature(scene.genuine, value=(value[:32] + scalar.to_bytes(32, "little")).hex())


def key_twice(scene: Scene) -> bytes:
    return scene.genuine.replace(b'"key":', f'"key":"{OTHER_KEY}","key":'.encode(), 1)


def other_payload(scene: Scene) -> bytes:
    return canonical_json(scene.fields | {"created": "2030-01-01T00:00:00+00:00"})


def without(scene: Scene, field: str) -> bytes:
    header, payload = split(scene.genuine)
    return joined({name: value for name, value in header.items() if name != field}, payload, fit=False)


def sized(scene: Scene, size_bytes: int, count: int) -> bytes:
    first = scene.fields["artifacts"][0]
    return scene.signed(
        artifacts=[
            first | {"path": f"c/f{index}/compiled_module", "size_bytes": size_bytes}
            for index in range(count)
        ]
    )


Case = tuple[Callable[[Scene], bytes], str]
MODULE = "compiled_module"
UNTRUSTED: dict[str, Case] = {
    "unsigned": (lambda s: seal(s.key, s.payload, signer=None), "unsigned"),
    "signed by a stranger": (lambda s: seal(s.key, s.payload, signer=STRANGER), "unknown_signer"),
    "stranger under a trusted name": (
        lambda s: seal(s.key, s.payload, signer=impostor("ci")),
        "unknown_signer",
    ),
    "stranger under a trusted id": (
        lambda s: with_signature(
            seal(s.key, s.payload, signer=impostor("ci")), key_id=key_id(TRUSTED.public_key)
        ),
        "bad_signature",
    ),
    "revoked key": (lambda s: seal(s.key, s.payload, signer=REVOKED), "revoked"),
    "revoked key under a trusted name": (
        lambda s: seal(s.key, s.payload, signer=Signer(name="ci", private_key=REVOKED.private_key)),
        "revoked",
    ),
    "revoked key under a trusted id": (
        lambda s: with_signature(seal(s.key, s.payload, signer=REVOKED), key_id=key_id(TRUSTED.public_key)),
        "bad_signature",
    ),
    "trusted signature under a revoked id": (
        lambda s: with_signature(s.genuine, key_id=key_id(REVOKED.public_key)),
        "revoked",
    ),
    "signature of zeros": (lambda s: with_signature(s.genuine, value="0" * 128), "bad_signature"),
    "signature of another document": (
        lambda s: with_signature(
            s.genuine, value=split(s.signed(rank=0, world_size=9))[0]["signature"]["value"]
        ),
        "bad_signature",
    ),
    "signature made malleable": (malleable, "bad_signature"),
    "replayed under another key": (lambda s: seal(OTHER_KEY, s.payload), "replayed"),
    "replayed as another kind": (lambda s: seal(s.key, s.payload, kind="launch"), "replayed"),
    "replayed with its key rewritten": (
        lambda s: with_header(seal(OTHER_KEY, s.payload), key=s.key),
        "bad_signature",
    ),
    "replayed with its kind rewritten": (
        lambda s: with_header(seal(s.key, s.payload, kind="launch"), kind="manifest"),
        "bad_signature",
    ),
    "producer's name rewritten": (lambda s: with_signature(s.genuine, name="boss"), "bad_signature"),
    "time rewritten": (lambda s: with_payload(s.genuine, other_payload(s)), "bad_signature"),
    "digest of an artifact rewritten": (
        lambda s: with_payload(s.genuine, split(s.artifact(sha256="0" * 64))[1]),
        "bad_signature",
    ),
}
DAMAGED: dict[str, Case] = {
    "no signature field": (lambda s: without(s, "signature"), "signature"),
    "signature null": (lambda s: with_header(s.genuine, signature=None), "signature"),
    "signature of no scheme": (lambda s: with_signature(s.genuine, scheme="none"), "scheme"),
    "signature in capitals": (lambda s: with_signature(s.genuine, value="A" * 128), "value"),
    "two signatures": (lambda s: with_header(s.genuine, signature=[{}, {}]), "signature"),
    "signer's name with a control character": (lambda s: with_signature(s.genuine, name="ci\x1b[2J"), "name"),
    "header with a key twice": (key_twice, "canonical JSON"),
    "header with another field": (lambda s: with_header(s.genuine, policy="off"), "policy"),
    "header beyond the limit": (lambda s: b" " * MAX_HEADER_BYTES + s.genuine, "a header of at most"),
    "header in UTF-16": (lambda s: s.genuine.decode().encode("utf-16"), "corrupt"),
    "header nested deep": (lambda s: b"[" * 4000, "JSON"),
    "document beyond the limit": (lambda s: s.genuine + b" " * (MAX_DOCUMENT_BYTES + 8192), "at most"),
    "earlier format": (lambda s: with_header(s.genuine, format=ENVELOPE_FORMAT - 1), "of an earlier release"),
    "format that is no number": (lambda s: with_header(s.genuine, format="2"), "format"),
    "payload truncated": (lambda s: s.genuine[:-1], "payload sha256"),
    "payload extended": (lambda s: s.genuine + b" ", "payload sha256"),
    "payload of another": (lambda s: split(s.genuine)[1], "corrupt"),
    "empty file": (lambda s: b"", "JSON"),
}
HARMFUL: dict[str, Case] = {
    "path to the parent": (lambda s: s.paths(f"../f/{MODULE}"), "'..'"),
    "path through the parent": (lambda s: s.paths(f"c/../../f/{MODULE}"), "'..'"),
    "absolute path": (lambda s: s.paths(f"/etc/{MODULE}"), "absolute"),
    "path with a backslash": (lambda s: s.paths(f"c\\..\\{MODULE}"), "backslash"),
    "path with a line feed": (lambda s: s.paths(f"c\n/f/{MODULE}"), "control character"),
    "path with NUL": (lambda s: s.paths(f"c\0/f/{MODULE}"), "control character"),
    "path that reads backwards": (lambda s: s.paths(f"c\u202e/f/{MODULE}"), "control character"),
    "path with a part of nothing": (lambda s: s.paths(f"c//f/{MODULE}"), "part ''"),
    "path with a dot": (lambda s: s.paths(f"c/./f/{MODULE}"), "part '.'"),
    "path of another file": (lambda s: s.paths("home/.bashrc"), "has the part"),
    "path too long": (lambda s: s.paths("ab/" * 400 + MODULE), "longer than 1024"),
    "part too long": (lambda s: s.paths("a" * 256 + "/" + MODULE), "part longer than 255"),
    "path too deep": (lambda s: s.paths("a/" * 40 + MODULE), "more than 32 parts"),
    "paths that differ in case": (lambda s: s.paths(f"c/f/{MODULE}", f"C/f/{MODULE}"), "case is ignored"),
    "paths that differ in normalisation": (
        lambda s: s.paths(f"\u00e9/f/{MODULE}", f"e\u0301/f/{MODULE}"),
        "case is ignored",
    ),
    "path twice": (lambda s: s.paths(f"c/f/{MODULE}", f"c/f/{MODULE}"), "twice"),
    "path that is a file and a directory": (
        lambda s: s.paths(f"c/{MODULE}", f"c/{MODULE}/{MODULE}"),
        "a file and a directory",
    ),
    "set-uid bit": (lambda s: s.artifact(mode=0o4755), "mode"),
    "link": (lambda s: s.artifact(link="/etc/passwd"), "link"),
    "digest that is a path": (lambda s: s.artifact(sha256="../../etc/passwd"), "should match pattern"),
    "size below nothing": (lambda s: s.artifact(size_bytes=-1), "size_bytes"),
    "size as text": (lambda s: s.artifact(size_bytes="7"), "size_bytes"),
    "size beyond the limit": (lambda s: s.artifact(size_bytes=MAX_FILE_BYTES + 1), "size_bytes"),
    "sizes beyond the limit together": (
        lambda s: sized(s, MAX_FILE_BYTES, MAX_PARTITION_BYTES // MAX_FILE_BYTES + 1),
        "together",
    ),
    "too many artifacts": (lambda s: sized(s, 1, MAX_ENTRIES + 1), "artifacts"),
    "too many components": (
        lambda s: s.signed(environment=dict.fromkeys(map(str, range(MAX_COMPONENTS + 1)), "")),
        "environment",
    ),
    "component too long": (lambda s: s.signed(environment={"torch": "2" * (MAX_TEXT_CHARS + 1)}), "torch"),
    "partition that is a path": (lambda s: s.signed(partition="../x"), "partition"),
    "rank outside its world": (lambda s: s.signed(rank=5), "not below world size"),
    "world beyond the limit": (lambda s: s.signed(world_size=1 << 40), "world_size"),
    "field of a later release": (lambda s: s.signed(run="rm -rf"), "run"),
    "no JSON": (lambda s: seal(s.key, b"import os"), "JSON"),
    "nested deep": (lambda s: seal(s.key, b"[" * 100_000), "JSON"),
    "number of many digits": (lambda s: seal(s.key, b'{"format":' + b"1" * 100_000 + b"}"), "JSON"),
    "not a number": (lambda s: seal(s.key, s.payload.replace(b'"rank":0', b'"rank":NaN')), "rank"),
}


def fetched(scene: Scene, data: bytes, trust: Trust) -> StoreError:
    """The fault of fetching a partition whose manifest is ``data``; checks that nothing was laid out."""
    outcome = open_store(scene.root, trust).fetch_partitions([scene.put(data)], scene.cache)
    assert outcome.partitions == ()
    assert [path for path in tree(scene.cache) if path.endswith(MODULE)] == []
    (fault,) = outcome.faults
    return fault.error


def test_genuine_manifest_is_laid_out(scene: Scene) -> None:
    ref = scene.put(scene.genuine)
    outcome = open_store(scene.root, reader()).fetch_partitions([ref], scene.cache)
    assert outcome.faults == ()
    assert len([path for path in tree(scene.cache) if path.endswith(MODULE)]) == 2


def test_manifest_of_another_trusted_signer_stands_under_a_publisher(scene: Scene, tmp_path: Path) -> None:
    publisher = Trust(policy="require", signer=STRANGER, trusted={"ci": TRUSTED.public_key})
    store, source = open_store(scene.root, publisher), tmp_path / "source"
    report = store.publish_partition(LAUNCH_KEY, make_partition(source), source)
    assert (report.created, report.conflicts) == (False, ())
    store.commit_launch(make_record((report.ref,)))
    everyone = {"ci": TRUSTED.public_key, "other": STRANGER.public_key}
    both = open_store(scene.root, Trust(policy="require", trusted=everyone))
    (record,) = both.launches()
    assert both.fetch_partitions(record.partitions, scene.cache).faults == ()


@pytest.mark.parametrize("signer", [None, STRANGER, REVOKED], ids=["unsigned", "stranger", "revoked"])
def test_publish_replaces_a_manifest_that_is_not_trusted(
    scene: Scene, tmp_path: Path, signer: Signer | None
) -> None:
    scene.put(seal(scene.key, scene.payload, signer=signer))
    source = tmp_path / "source"
    store = open_store(scene.root, Trust(policy="require", signer=TRUSTED, revoked=REVOCATIONS))
    report = store.publish_partition(LAUNCH_KEY, make_partition(source), source)
    assert report.created
    assert store.fetch_partitions([report.ref], scene.cache).faults == ()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", UNTRUSTED)
def test_untrusted_manifest_is_refused_by_its_reason(scene: Scene, name: str) -> None:
    make, reason = UNTRUSTED[name]
    error = fetched(scene, make(scene), reader())
    assert isinstance(error, Untrusted), error
    assert error.reason == reason
    assert error.remedy


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "name", [name for name, case in UNTRUSTED.items() if case[1] in ("bad_signature", "revoked", "replayed")]
)
def test_policy_warn_refuses_what_is_tampered_revoked_or_replayed(scene: Scene, name: str) -> None:
    make, reason = UNTRUSTED[name]
    error = fetched(scene, make(scene), reader("warn"))
    assert isinstance(error, Untrusted), error
    assert error.reason == reason


@pytest.mark.one_in(12)
@pytest.mark.parametrize("policy", ["require", "warn", "off"])
@pytest.mark.parametrize("name", [*DAMAGED, *HARMFUL])
def test_damaged_or_harmful_manifest_is_refused_under_every_policy(
    scene: Scene, name: str, policy: TrustPolicy
) -> None:
    make, text = (DAMAGED | HARMFUL)[name]
    error = fetched(scene, make(scene), reader(policy))
    assert isinstance(error, Corrupt), error
    assert text in str(error)
    assert stored(scene.root, "quarantine"), "what is damaged belongs into quarantine"


@pytest.mark.parametrize(
    ("policy", "kind"), [("require", Untrusted), ("warn", NewerFormat), ("off", NewerFormat)]
)
def test_manifest_of_a_later_release_is_refused_and_stays(
    scene: Scene, policy: TrustPolicy, kind: type[StoreError]
) -> None:
    error = fetched(scene, with_header(scene.genuine, format=ENVELOPE_FORMAT + 1), reader(policy))
    assert isinstance(error, kind)
    assert "upgrade warmrank" in str(error)
    assert (scene.root / manifest_name(scene.key)).exists()


@pytest.mark.parametrize("delta", [-1, 1])
def test_size_that_is_not_the_blobs_is_refused(scene: Scene, delta: int) -> None:
    size_bytes = scene.fields["artifacts"][0]["size_bytes"] + delta
    assert isinstance(fetched(scene, scene.artifact(size_bytes=size_bytes), reader()), Corrupt)


@pytest.mark.parametrize("signer", [None, STRANGER, REVOKED], ids=["unsigned", "stranger", "revoked"])
def test_launch_record_that_is_not_trusted_is_no_launch(scene: Scene, signer: Signer | None) -> None:
    ref = scene.put(scene.genuine)
    forger = open_store(scene.root, Trust(policy="off", signer=signer))
    forger.commit_launch(make_record((ref,)))
    store = open_store(scene.root, reader())
    assert store.launches() == ()
    assert any("untrusted" in problem for problem in store.problems)


def test_launch_record_under_another_key_is_no_launch(scene: Scene) -> None:
    ref = scene.put(scene.genuine)
    open_store(scene.root, Trust(policy="require", signer=TRUSTED)).commit_launch(make_record((ref,)))
    (record,) = stored(scene.root, "launch")
    target = scene.root / "launch" / OTHER_KEY[:2] / OTHER_KEY / record.name
    target.parent.mkdir(parents=True)
    record.rename(target)
    store = open_store(scene.root, reader())
    assert store.launches() == ()
    assert any("replayed" in problem for problem in store.problems)


def documents() -> dict[tuple[DocumentKind, str], bytes]:
    """Genuine payloads by what they were made for, each as a manifest of another rank."""
    manifests = [
        rank_manifest(
            partition=(name := f"world4global_rank{rank}"),
            rank=rank,
            world_size=4,
            artifacts=tuple(
                rank_entry(function=function, path=f"M_0f/{name}/{function}/compiled_module")
                for function in ("prefill", "decode")
            ),
        )
        for rank in range(4)
    ]
    kinds: tuple[DocumentKind, ...] = ("manifest", "launch")
    return {(kind, f"{manifest.rank}" * 64): manifest.to_bytes() for kind in kinds for manifest in manifests}


def chances(name: str, count: int) -> Iterator[random.Random]:
    return (random.Random(f"{SEED} {name} {index}") for index in range(count))


@dataclass(frozen=True)
class Harvest:
    """What became of mutated envelopes: how many of each outcome, and of those taken what was wrong."""

    outcomes: Counter[str]
    wrong: list[str]


def mutate_envelopes(trust: Trust, count: int) -> Harvest:
    genuine = documents()
    sealed = {place: seal(place[1], payload, kind=place[0]) for place, payload in genuine.items()}
    others = [*sealed.values()]
    for signer in (STRANGER, REVOKED, None):
        others += [seal(key, data, kind=kind, signer=signer) for (kind, key), data in genuine.items()]
    harvest = Harvest(outcomes=Counter(), wrong=[])
    for index, chance in enumerate(chances("envelope", count)):
        kind, key = place = chance.choice(sorted(genuine))
        data = sealed[place] if chance.random() < 0.8 else chance.choice(others)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            data = _mutated(data, others, chance)
        try:
            payload = trust.open_envelope(kind, key, data)
        except StoreError as error:
            harvest.outcomes[error.reason if isinstance(error, Untrusted) else type(error).__name__] += 1
            continue
        harvest.outcomes["taken"] += 1
        if (payload, data) != (genuine[place], sealed[place]):
            harvest.wrong.append(f"mutation {index} of {kind} {key[:1]}")
    return harvest


@pytest.mark.timeout(3600)
def test_no_mutation_of_an_envelope_passes_for_the_original(fault_rounds: int) -> None:
    harvest = mutate_envelopes(reader(), fault_rounds * MUTATIONS_A_ROUND)
    assert harvest.wrong == []
    reasons = {"Corrupt", "replayed", "unsigned", "unknown_signer", "revoked", "bad_signature"}
    assert reasons - harvest.outcomes.keys() == set()  # the mutations get as far as every refusal


def test_a_reader_that_looks_at_no_signature_takes_mutations() -> None:
    assert mutate_envelopes(Trust(policy="off"), MUTATIONS_A_ROUND).wrong != []


def _mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    mutate = chance.choice(MUTATIONS)
    try:
        return mutate(data, others, chance)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError):
        return data[: len(data) // 2]  # what came before left nothing that has such a structure


@pytest.mark.timeout(3600)
def test_no_mutation_of_a_signed_manifest_leaves_the_cache_directory(fault_rounds: int) -> None:
    trust, payloads = reader(), sorted(set(documents().values()))
    num_taken = 0
    for chance in chances("manifest", fault_rounds * MUTATIONS_A_ROUND):
        value = json.loads(chance.choice(payloads))
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = mutated_json(value, chance)
        payload = canonical_json(value)
        try:
            manifest = parse_manifest(
                trust.open_envelope("manifest", "1" * 64, seal("1" * 64, payload)), "here"
            )
        except StoreError:
            continue
        num_taken += 1
        _check_harmless(manifest)
    assert (
        num_taken > 0
    )  # some mutations are good manifests: what is checked here is not that all are refused


def _check_harmless(manifest: PartitionManifest) -> None:
    paths = [entry.path for entry in manifest.artifacts]
    assert [path_fault(path) for path in paths if path_fault(path)] == []
    assert all(".." not in PurePosixPath("/cache", path).parts for path in paths)
    assert all(PurePosixPath(path).name.startswith(MODULE) for path in paths)
    assert collision(paths) is None
    assert sum(entry.size_bytes for entry in manifest.artifacts) <= MAX_PARTITION_BYTES
    assert 0 <= manifest.rank < manifest.world_size
