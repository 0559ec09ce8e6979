from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import StoreUnavailable
from cache_store.signing.trust import Trust
from cache_store.store import Store
from tests.support.stored import FUNCTIONS, blob_path, open_store, overwrite, publish_launch, stored, tree

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


def test_empty_store_has_no_faults(tmp_path):
    report = open_store(tmp_path / "empty").verify()
    assert (report.num_blobs, report.faults) == (0, ())


def test_verify_changes_nothing(store, root):
    overwrite(blob_path(root, DECODE), b"damaged")
    before = tree(root)
    assert store.verify().faults
    assert tree(root) == before


def test_flipped_bit_in_a_blob_is_found(store, root):
    overwrite(blob_path(root, DECODE), bytes([DECODE[0] ^ 1]) + DECODE[1:])
    assert [blob_path(root, DECODE).name in fault for fault in store.verify().faults] == [True]


def test_missing_blob_is_found_for_every_manifest(store, root):
    blob_path(root, DECODE).unlink()
    faults = store.verify().faults
    assert len(faults) == 2
    assert all("Llama.decode needs" in fault and "missing" in fault for fault in faults)


def test_truncated_blob_is_found_with_the_manifests_that_need_it(store, root):
    overwrite(blob_path(root, DECODE), DECODE[:-1])
    assert len(store.verify().faults) == 3


def test_truncated_manifest_is_found(store, root):
    path = stored(root, "ac")[0]
    overwrite(path, path.read_bytes()[:-1])
    assert [path.name in fault for fault in store.verify().faults] == [True]


def test_blob_that_cannot_be_read_is_found(store, root, monkeypatch):
    def fail(name: str) -> None:
        raise StoreUnavailable(what=name, where=str(root), reason="Input/output error")

    monkeypatch.setattr(store._supervisor.tiers[0].backend, "open", fail)
    assert all("Input/output error" in fault for fault in store.verify().faults)
    assert store.verify().num_blobs == 0


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


def test_damaged_launch_record_is_found(store, root):
    overwrite(stored(root, "launch")[0], b"{}")
    assert len(store.verify().faults) == 1


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
