"""The store as a whole: verbs over two places, audit, bytes on disk."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.backends import WaywardBackend, unavailable
from tests.support.stored import (
    ENVIRONMENT,
    FUNCTIONS,
    LAUNCH_KEY,
    OFF,
    REPOSITORY,
    blob_path,
    make_partition,
    open_store,
    overwrite,
    publish_launch,
    stored,
)
from warmrank.cache_store import connect
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode
from warmrank.cache_store.connect import TierSpec
from warmrank.cache_store.errors import Corrupt, StoreUnavailable
from warmrank.cache_store.gc import verify as audit
from warmrank.cache_store.signing.keyring import Revocation
from warmrank.cache_store.signing.signing_keys import Signer, generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store


@pytest.fixture
def key(store: Store, tmp_path: Path) -> str:
    manifest = make_partition(tmp_path / "cache")
    return store.publish_partition(LAUNCH_KEY, manifest, tmp_path / "cache").key


def test_flipped_bit_in_a_manifest_is_corrupt_and_quarantined(store, root, key):
    (path,) = stored(root, "ac")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    overwrite(path, bytes(data))
    with pytest.raises(Corrupt, match=key):
        store.manifest(key)
    assert stored(root, "ac") == []


def test_manifest_with_path_traversal_is_refused(store, root, key):
    (path,) = stored(root, "ac")
    payload = path.read_bytes().split(b"\n", 1)[1].replace(b'"Llama_dynamic', b'"../escaped')
    overwrite(path, OFF.seal("manifest", key, payload))
    with pytest.raises(Corrupt, match=r"has the part '\.\.'"):
        store.manifest(key)


@pytest.fixture
def places() -> tuple[WaywardBackend, WaywardBackend]:
    """A near and a far place."""
    return WaywardBackend(), WaywardBackend()


def tiered(
    places: tuple[WaywardBackend, WaywardBackend], near: TierMode = "rw", far: TierMode = "rw"
) -> Store:
    tiers = [Tier(name="near", backend=places[0], mode=near), Tier(name="far", backend=places[1], mode=far)]
    return Store(TieredBackend(tiers), trust=OFF, location="near, far")


def names(backend: WaywardBackend) -> set[str]:
    return {info.name for info in backend.list("") if not info.name.startswith("used/")}


def test_fetch_fills_the_near_place_so_that_it_serves_alone(places, tmp_path):
    far_only = Store(places[1], trust=OFF, location="far")
    record = publish_launch(far_only, tmp_path / "source", world_size=2)
    store = tiered(places)
    assert store.launches(record.launch_key) == (record,)
    store.fetch_partitions(record.partitions, tmp_path / "cache")
    near_only = Store(places[0], trust=OFF, location="near")
    assert near_only.launches(record.launch_key) == (record,)
    outcome = near_only.fetch_partitions(record.partitions, tmp_path / "again")
    assert (len(outcome.partitions), outcome.faults, near_only.problems) == (2, (), [])


def test_fetch_while_the_near_place_goes_away_is_a_problem_only(places, tmp_path):
    record = publish_launch(Store(places[1], trust=OFF, location="far"), tmp_path / "source")
    places[0].failure = unavailable("connection refused", transport=True)
    places[0].fails_on = frozenset({"put_new"})
    store = tiered(places)
    outcome = store.fetch_partitions(record.partitions, tmp_path / "cache")
    assert (len(outcome.partitions), outcome.faults) == (1, ())
    assert ["connection refused" in line for line in store.problems] == [True]


def test_fetch_while_a_required_near_place_goes_away_is_an_error_of_the_next_verb(places, tmp_path):
    record = publish_launch(Store(places[1], trust=OFF, location="far"), tmp_path / "source")
    places[0].failure = unavailable("connection refused", transport=True)
    places[0].fails_on = frozenset({"put_new"})
    store = tiered(places, near="required")
    store.fetch_partitions(record.partitions, tmp_path / "cache")
    with pytest.raises(StoreUnavailable, match="required store near"):
        store.launches()


def test_store_without_its_far_place_goes_on_and_says_that_it_is_behind(places, tmp_path):
    places[1].failure = unavailable("connection refused", transport=True)
    store = tiered(places)
    record = publish_launch(store, tmp_path / "cache")
    assert store.launches(record.launch_key) == (record,)
    assert store.is_behind
    assert [(tier.location, tier.state, tier.reason) for tier in store.tiers] == [
        ("near", "used", ""),
        ("far", "away", "connection refused"),
    ]
    assert ["connection refused" in line for line in store.problems] == [True]


def test_required_place_that_is_away_fails_every_verb(places, tmp_path):
    places[1].failure = unavailable("connection refused", transport=True)
    store = tiered(places, far="required")
    for verb in (lambda: publish_launch(store, tmp_path / "cache"), store.launches, store.verify):
        with pytest.raises(StoreUnavailable, match="connection refused") as caught:
            verb()
        assert caught.value.required


DECODE = FUNCTIONS["Llama.decode"]


@pytest.fixture
def audited(root: Path, tmp_path: Path) -> Store:
    audited = open_store(root)
    publish_launch(audited, tmp_path / "cache", world_size=2)
    return audited


def test_flipped_bit_in_a_blob_is_found(audited, root):
    overwrite(blob_path(root, DECODE), bytes([DECODE[0] ^ 1]) + DECODE[1:])
    assert [blob_path(root, DECODE).name in fault for fault in audited.verify().faults] == [True]


def test_manifest_that_a_launch_does_not_pin_is_found(audited, root, tmp_path):
    for path in stored(root, "ac"):
        path.unlink()
    publish_launch(audited, tmp_path / "cache", world_size=2, created="2026-02-01T00:00:00+00:00")
    faults = audited.verify().faults
    assert len(faults) == 2
    assert all("another one than it pins" in fault for fault in faults)


@pytest.mark.parametrize("place", ["cas/sha256/ab/README", "ac/README", "launch/ab/README"])
def test_stranger_is_found(audited, root, place):
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).touch()
    assert [place in fault for fault in audited.verify().faults] == [True]


def test_repair_moves_what_is_damaged_away_so_that_a_publish_puts_it_again(audited, root, tmp_path):
    overwrite(blob_path(root, DECODE), bytes([DECODE[0] ^ 1]) + DECODE[1:])
    report = audited.verify(repair=True)
    assert (len(report.faults), len(report.repairs)) == (1, 1)
    publish_launch(audited, tmp_path / "cache", world_size=2)
    assert audited.verify().faults == ()


def test_repair_brings_back_what_lies_in_the_trash(audited, root):
    path = blob_path(root, DECODE)
    target = root / "trash/20260101T000000Z" / path.relative_to(root)
    target.parent.mkdir(parents=True)
    path.rename(target)
    assert audited.verify(repair=True).repairs == (
        f"{path.relative_to(root).as_posix()}: restored from the trash",
    )
    assert audited.verify().faults == ()


def test_blob_that_was_put_again_while_it_was_read_stays(audited, root, monkeypatch):
    path = blob_path(root, DECODE)
    overwrite(path, bytes([DECODE[0] ^ 1]) + DECODE[1:])
    real = audit._digest
    seen: list[str] = []

    def digest(backend: BlobBackend, name: str) -> object:
        answer = real(backend, name)
        if name.endswith(path.name) and not seen:
            seen.append(name)
            overwrite(path, DECODE)
        return answer

    monkeypatch.setattr(audit, "_digest", digest)
    report = audited.verify(repair=True)
    assert (seen != [], report.faults, report.repairs) == (True, (), ())
    assert path.read_bytes() == DECODE


@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_remedy_of_damage_is_one_for_the_place_that_has_it(audited, root, mode):
    (record,) = stored(root, "launch")
    overwrite(record, b"damaged")
    (manifest, _) = stored(root, "ac")
    overwrite(manifest, b"damaged")
    blob_path(root, DECODE).unlink()
    blob_path(root, DECODE).symlink_to(root / "nowhere")
    place = connect.open_store([TierSpec(location=str(root), mode=mode)], trust=OFF, create=False)
    said = [
        fault.rpartition("; ")[2]
        for fault in place.verify().faults
        if fault.startswith(("corrupt", "untrusted"))
    ]
    assert len(said) == 3
    assert all(("where it may be written" in remedy) == (mode == "ro") for remedy in said)


@pytest.mark.parametrize("place", ["cas", "ac", "launch"])
def test_dangling_link_is_found_and_moved_away(audited, root, place):
    path = stored(root, place)[0]
    path.unlink()
    path.symlink_to(root / "nowhere")
    name = path.relative_to(root).as_posix()
    assert any(name in fault for fault in audited.verify().faults)
    assert f"{name}: moved into quarantine" in audited.verify(repair=True).repairs
    assert not path.is_symlink()


def test_repair_moves_away_what_a_revoked_key_signed(root, tmp_path):
    signer = generate_key_pair("ci")
    publish_launch(open_store(root, Trust(policy="require", signer=signer)), tmp_path / "cache")
    own = key_id(signer.public_key)
    trusted = {"ci": signer.public_key}
    revoked = {own: Revocation(key_id=own, reason="stolen")}
    wary = open_store(root, Trust(policy="require", trusted=trusted, revoked=revoked))
    assert len(wary.verify(repair=True).repairs) == 2  # the manifest and the record
    assert wary.verify().faults == ()


OTHER = {**ENVIRONMENT, "cpu": "avx2"}
SIGNED = Trust(
    policy="require", signer=Signer(name="ci", private_key=Ed25519PrivateKey.from_private_bytes(bytes(32)))
)


def tree_digest(root: Path) -> tuple[int, str]:
    """Number of files below a store, and a digest of their names and bytes."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    lines = (
        f"{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in files
    )
    return len(files), hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(
    ("trust", "digest"),
    [
        (OFF, "0ed074bca44c8b7fa50e06f6c69d874b9d6790eeb49be302be31bb25f750d6dd"),
        (SIGNED, "806bdb72e0b60291403ae4cb297bdd7aa81fe5aa612ce10a897644a4d87a6542"),
    ],
    ids=["unsigned", "signed"],
)
def test_store_tree_of_a_launch_has_the_bytes_that_it_always_had(trust: Trust, digest: str, tmp_path: Path):
    publish_launch(
        open_store(tmp_path / "store", trust), tmp_path / "cache", world_size=2, elsewhere={1: OTHER}
    )
    assert tree_digest(tmp_path / "store") == (6, digest)


HEAVY = {"pydantic", "cryptography", "filelock", "torch", "ray", "ctypes", "asyncio"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    return set(
        subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    )


def test_warm_load_imports_the_standard_library_only():
    statement = "from warmrank.cache_store.cache_dir import local, marks"
    assert loaded_by(statement) & HEAVY == set()


def test_whole_package_imports_neither_torch_nor_ray():
    assert (
        loaded_by("import warmrank.cache_store.seed, warmrank.cache_store.store") & {"torch", "ray"} == set()
    )
