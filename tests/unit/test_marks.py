"""What refers to what in a store, as an evict sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sealed_launches import SHARED, Evicting
from tests.support.stored import LAUNCH_KEY, OFF
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, EvictRefused, NotInStore
from warmrank.cache_store.gc.inventory import Inventory, references, take_inventory
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.layout import blob_name, launch_name
from warmrank.cache_store.records.documents import read_stored_form
from warmrank.cache_store.records.manifest import created_at

KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def memory(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path)


def put(memory: Evicting, name: str, data: bytes) -> None:
    memory.backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])


def blob(data: bytes) -> str:
    return blob_name(digest_bytes(data).sha256)


def inventory(memory: Evicting, earlier: Inventory | None = None) -> Inventory:
    return take_inventory(memory.backend, memory.backend.now_s, trust=OFF, earlier=earlier)


def into_trash(memory: Evicting, name: str, *, hour: int = 12) -> str:
    trashed = f"trash/20260131T{hour}0000Z/{name}"
    assert memory.backend.move(name, trashed)
    return trashed


def opened(memory: Evicting, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that are read from now on."""
    names: list[str] = []
    real = memory.backend.open

    def note(name: str) -> object:
        names.append(name)
        return real(name)

    monkeypatch.setattr(memory.backend, "open", note)
    return names


def test_launch_refers_to_manifests_and_they_to_blobs(memory):
    record = memory.launch()
    found = references(record, read_stored_form(memory.backend, record))
    assert found.references == tuple(memory.names("ac/"))
    assert found.created_s == created_at(memory.store.launches()[0]).timestamp()
    (manifest,) = found.references
    needed = references(manifest, read_stored_form(memory.backend, manifest)).references
    assert set(needed) == memory.names("cas/") == {blob(b"own 1"), blob(SHARED)}


def test_document_under_the_name_of_another_is_corrupt(memory):
    record = memory.launch()
    sealed = read_stored_form(memory.backend, record)
    for name in (
        launch_name(LAUNCH_KEY, OTHER),
        launch_name(KEY, OTHER),
        f"dir/ab/{KEY}/{OTHER}",
        f"ac/ab/{KEY}",
    ):
        with pytest.raises(Corrupt):
            references(name, sealed)


def test_inventory_has_all_that_stands_and_no_strangers(memory):
    record = memory.launch()
    mark_used(memory.backend, record)
    memory.store.pin(record.rpartition("/")[2])
    for stranger in ("cas/sha256/ab/notes", "ac/notes", "launch/ab/notes", "dir/x", "pins/a/b"):
        put(memory, stranger, b"x")
    found = inventory(memory)
    assert set(found.files) == {record} | {
        name for name in memory.names("ac/") | memory.names("cas/") if "notes" not in name
    }
    assert set(found.documents) == {name for name in found.files if not name.startswith("cas/")}
    assert (set(found.pins), set(found.uses), len(found.marks)) == ({record}, {record}, 1)


def test_document_that_was_replaced_is_read_again(memory, monkeypatch):
    record = memory.launch()
    first = inventory(memory)
    sealed = read_stored_form(memory.backend, record)
    memory.backend.move(record, None)
    memory.pass_time(1.0)
    put(memory, record, sealed)
    names = opened(memory, monkeypatch)
    inventory(memory, earlier=first)
    assert names == [record]


def test_manifest_in_the_trash_counts_while_a_standing_record_needs_it(memory):
    memory.launch()
    (manifest,) = memory.names("ac/")
    into_trash(memory, manifest)
    found = inventory(memory)
    assert set(found.documents[manifest].references) == memory.names("cas/")
    assert manifest not in found.files
    assert manifest in found.trash


def test_damaged_manifest_that_stands_stops_everything(memory):
    memory.launch()
    (manifest,) = memory.names("ac/")
    memory.backend.move(manifest, None)
    put(memory, manifest, b"damaged")
    with pytest.raises(EvictRefused, match="verify --repair"):
        inventory(memory)


def test_document_that_another_process_takes_meanwhile_is_left_out(memory, monkeypatch):
    memory.launch()
    gone = memory.launch()
    real = memory.backend.open

    def take(name: str) -> object:
        if name == gone:
            raise NotInStore(what=name, where="memory")
        return real(name)

    monkeypatch.setattr(memory.backend, "open", take)
    found = inventory(memory)
    assert gone not in found.documents
    assert gone not in found.files
    assert len(found.documents) == 3


def test_record_with_a_pin_that_the_listing_leaves_out_is_refused(memory, monkeypatch):
    hidden = memory.launch()
    memory.store.pin(hidden.rpartition("/")[2])
    real = memory.backend.list
    monkeypatch.setattr(
        memory.backend, "list", lambda prefix: (info for info in real(prefix) if info.name != hidden)
    )
    with pytest.raises(EvictRefused, match="not in its listing"):
        inventory(memory)
