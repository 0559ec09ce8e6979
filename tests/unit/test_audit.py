from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored import (
    FUNCTIONS,
    OFF,
    blob_path,
    open_store,
    overwrite,
    publish_launch,
    stored,
)
from warmrank.cache_store import connect
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.connect import TierSpec
from warmrank.cache_store.gc import verify as audit
from warmrank.cache_store.signing.keyring import Revocation
from warmrank.cache_store.signing.signing_keys import generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store

DECODE = FUNCTIONS["Llama.decode"]


@pytest.fixture
def store(root: Path, tmp_path: Path) -> Store:
    store = open_store(root)
    publish_launch(store, tmp_path / "cache", world_size=2)
    return store


def test_whole_store_has_no_faults(store):
    report = store.verify()
    assert (report.num_blobs, report.num_manifests, report.num_launches, report.faults) == (2, 2, 1, ())
    assert report.bytes_hashed == sum(len(data) for data in FUNCTIONS.values())


def test_flipped_bit_in_a_blob_is_found(store, root):
    overwrite(blob_path(root, DECODE), bytes([DECODE[0] ^ 1]) + DECODE[1:])
    assert [blob_path(root, DECODE).name in fault for fault in store.verify().faults] == [True]


def test_missing_manifest_is_found_by_its_launch(store, root):
    stored(root, "ac")[0].unlink()
    (fault,) = store.verify().faults
    assert "the manifest of world2global_rank" in fault


def test_manifest_that_a_launch_does_not_pin_is_found(store, root, tmp_path):
    for path in stored(root, "ac"):
        path.unlink()
    publish_launch(store, tmp_path / "cache", world_size=2, created="2026-02-01T00:00:00+00:00")
    faults = store.verify().faults
    assert len(faults) == 2
    assert all("another one than it pins" in fault for fault in faults)


def test_unsigned_documents_are_found_under_require(store, root):
    faults = open_store(root, Trust(policy="require")).verify().faults
    assert len(faults) == 3
    assert all("unsigned" in fault for fault in faults)


@pytest.mark.parametrize("place", ["cas/sha256/ab/README", "ac/README", "launch/ab/README"])
def test_stranger_is_found(store, root, place):
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).touch()
    assert [place in fault for fault in store.verify().faults] == [True]


def test_repair_moves_what_is_damaged_away_so_that_a_publish_puts_it_again(store, root, tmp_path):
    overwrite(blob_path(root, DECODE), bytes([DECODE[0] ^ 1]) + DECODE[1:])
    report = store.verify(repair=True)
    assert (len(report.faults), len(report.repairs)) == (1, 1)
    publish_launch(store, tmp_path / "cache", world_size=2)
    assert store.verify().faults == ()


def test_repair_brings_back_what_lies_in_the_trash(store, root):
    path = blob_path(root, DECODE)
    target = root / "trash/20260101T000000Z" / path.relative_to(root)
    target.parent.mkdir(parents=True)
    path.rename(target)
    assert store.verify(repair=True).repairs == (
        f"{path.relative_to(root).as_posix()}: restored from the trash",
    )
    assert store.verify().faults == ()


def test_blob_that_was_put_again_while_it_was_read_stays(store, root, monkeypatch):
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
    report = store.verify(repair=True)
    assert (seen != [], report.faults, report.repairs) == (True, (), ())
    assert path.read_bytes() == DECODE


@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_remedy_of_damage_is_one_for_the_place_that_has_it(store, root, mode):
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
def test_dangling_link_is_found_and_moved_away(store, root, place):
    path = stored(root, place)[0]
    path.unlink()
    path.symlink_to(root / "nowhere")
    name = path.relative_to(root).as_posix()
    assert any(name in fault for fault in store.verify().faults)
    assert f"{name}: moved into quarantine" in store.verify(repair=True).repairs
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
