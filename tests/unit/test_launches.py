"""Launch records, their pins and marks of use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backends import MemoryBackend
from tests.support.sealed_launches import Evicting
from tests.support.stored import (
    ENVIRONMENT,
    LAUNCH_KEY,
    OFF,
    make_partition,
    make_record,
    open_store,
    overwrite,
    stored,
)
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Conflict, Corrupt, EvictRefused, NotInStore, Untrusted
from warmrank.cache_store.gc.inventory import Inventory, references, take_inventory
from warmrank.cache_store.layout import launch_name, manifest_name
from warmrank.cache_store.records.documents import read_stored_form
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store

EARLY, LATE, LATEST = (f"2026-0{month}-01T00:00:00+00:00" for month in (1, 2, 3))


@pytest.fixture
def ref(store: Store, cache: Path) -> PartitionRef:
    return store.publish_partition(LAUNCH_KEY, make_partition(cache), cache).ref


def test_launch_with_a_missing_manifest_is_refused(store, root, ref):
    missing = PartitionRef(
        partition="world2global_rank1", rank=1, manifest_key="7" * 64, manifest_sha256="8" * 64
    )
    with pytest.raises(NotInStore, match=r"manifests 777777777777 of world2global_rank1 .*publish these"):
        store.commit_launch(make_record((ref, missing)))
    assert stored(root, "launch") == []


def test_launch_that_pins_another_manifest_is_refused(store, root, ref):
    other = ref.model_copy(update={"manifest_sha256": "8" * 64})
    with pytest.raises(Conflict, match="world1global_rank0"):
        store.commit_launch(make_record((other,)))
    assert stored(root, "launch") == []


def test_truncated_record_is_skipped_quarantined_and_reported(store, root, ref, caplog):
    store.commit_launch(make_record((ref,)))
    (path,) = stored(root, "launch")
    overwrite(path, path.read_bytes()[:-1])
    assert store.launches() == ()
    assert len(store.problems) == 1
    assert path.name in store.problems[0]
    assert "Skipped a document" in caplog.text
    assert len(stored(root, "quarantine")) == 2


def test_damaged_record_does_not_hide_the_others(store, root, ref):
    good = make_record((ref,), created=LATE)
    store.commit_launch(make_record((ref,), environment={}, created=EARLY))
    (bad,) = stored(root, "launch")
    store.commit_launch(good)
    overwrite(bad, b"")
    assert store.launches() == (good,)


def test_record_replayed_under_another_launch_key_is_refused(store, root, ref):
    sha256 = store.commit_launch(make_record((ref,)))
    target = root / launch_name("1" * 64, sha256)
    target.parent.mkdir(parents=True)
    target.write_bytes((root / launch_name(LAUNCH_KEY, sha256)).read_bytes())
    assert store.launches("1" * 64) == ()
    assert "replayed" in store.problems[0]


def test_commit_without_a_signing_key_is_refused_under_require(root, ref):
    reader = open_store(root, Trust(policy="require"))
    with pytest.raises(Untrusted, match="no_signing_key"):
        reader.commit_launch(make_record((ref,)))


def test_manifest_replayed_under_another_key_is_refused(store, root, ref):
    target = root / manifest_name("1" * 64)
    target.parent.mkdir(parents=True)
    target.write_bytes((root / manifest_name(ref.manifest_key)).read_bytes())
    with pytest.raises(Untrusted, match=r"replayed.*made for 'manifest'"):
        store.manifest("1" * 64)
    assert not target.exists()


@pytest.fixture
def memory(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path)


def test_pin_is_listed_with_its_reason_and_removed_again(memory):
    record = memory.launch()
    prefix = record.rpartition("/")[2][:12]
    memory.store.pin(prefix, reason="baseline")
    assert [(pin.record, pin.reason) for pin in memory.store.pins()] == [(record, "baseline")]
    assert memory.store.unpin(prefix) == (record,)
    assert memory.store.pins() == ()


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


def marks(backend: MemoryBackend) -> list[str]:
    return sorted(info.name for info in backend.list("used/"))


KEY, OTHER = "ab" * 32, "cd" * 32


def put(memory: Evicting, name: str, data: bytes) -> None:
    memory.backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])


def inventory(memory: Evicting, earlier: Inventory | None = None) -> Inventory:
    return take_inventory(memory.backend, memory.backend.now_s, trust=OFF, earlier=earlier)


def into_trash(memory: Evicting, name: str, *, hour: int = 12) -> str:
    trashed = f"trash/20260131T{hour}0000Z/{name}"
    assert memory.backend.move(name, trashed)
    return trashed


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


def test_launches_come_newest_first_by_the_store_s_clock(store, ref):
    for created in (LATE, LATEST, EARLY):  # whatever the clocks of their nodes say
        environment = {**ENVIRONMENT, "made": created}
        store.commit_launch(make_record((ref,), created=created, environment=environment))
    for found in (store.launches(LAUNCH_KEY), store.launch_summaries(LAUNCH_KEY)):
        assert [record.created for record in found] == [EARLY, LATEST, LATE]
    assert store.problems == []


def opened(memory: Evicting, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that are read from now on."""
    names: list[str] = []
    real = memory.backend.open

    def note(name: str) -> object:
        names.append(name)
        return real(name)

    monkeypatch.setattr(memory.backend, "open", note)
    return names


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
