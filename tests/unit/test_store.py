"""The store as a whole: verbs over two places, audit, launch records, bytes on disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.backends import new_file, read, unavailable
from tests.support.checkout import python
from tests.support.sealed_launches import Evicting
from tests.support.stored import (
    ENVIRONMENT,
    FUNCTIONS,
    LAUNCH_KEY,
    OFF,
    backend_of,
    blob_path,
    make_partition,
    make_record,
    open_store,
    overwrite,
    publish_launch,
    stored,
    tree,
)
from warmrank.cache_store.errors import Conflict, Corrupt, NotInStore, StoreUnavailable
from warmrank.cache_store.gc.inventory import Inventory, references, take_inventory
from warmrank.cache_store.layout import quarantine_name, record_name
from warmrank.cache_store.records.documents import read_stored_form
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.signing.keyring import Revocation, Signer, generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store


def test_fetch_fills_the_near_place_so_that_it_serves_alone(places, tmp_path):
    far_only = Store(places.far, trust=OFF, location="far")
    record = publish_launch(far_only, tmp_path / "source", world_size=2)
    store = places.store()
    # Also what the cache directory has already.
    records = tuple(store.newest_launches(record.launch_key))
    store.fetch_partitions(record.partitions, tmp_path / "source", records=records)
    near_only = Store(places.near, trust=OFF, location="near")
    assert near_only.launches(record.launch_key) == (record,)
    outcome = near_only.fetch_partitions(record.partitions, tmp_path / "again")
    assert (len(outcome.partitions), outcome.faults, near_only.problems) == (2, (), [])


@pytest.mark.parametrize("kind", ["ac/", "launch/"])
def test_fetch_replaces_what_the_near_place_has_and_the_farthest_no_more(places, tmp_path, kind):
    record = publish_launch(places.store(), tmp_path / "source")
    name = next(info.name for info in places.far.list(kind))
    places.near.move(name, None)
    places.near.put_new([new_file(name, b"older")])
    store = places.store()
    records = tuple(store.newest_launches())
    for _ in range(2):  # the second one finds all as it should be
        places.far.calls.clear()
        store.fetch_partitions(record.partitions, tmp_path / "cache", records=records)
    assert (places.far.calls, store.problems) == (["open"], [])  # the manifest, once
    near_only = Store(places.near, trust=OFF, location="near")
    assert near_only.fetch_partitions(near_only.launches()[0].partitions, tmp_path / "again").faults == ()
    assert [info.name.split(".")[0] for info in places.near.list("quarantine/")] == [
        f"quarantine/{name.replace('/', '__')}"
    ] * 2


def test_commit_replaces_a_record_that_the_near_place_has_otherwise(places, tmp_path):
    publish_launch(Store(places.far, trust=OFF, location="far"), tmp_path / "source")
    (name,) = (info.name for info in places.far.list("launch/"))
    places.near.put_new([new_file(name, b"older")])
    publish_launch(places.store(), tmp_path / "source")
    assert read(places.near, name) == read(places.far, name)


@pytest.mark.parametrize("near", ["rw", "required"])
def test_fetch_while_the_near_place_goes_away_is_a_problem_unless_it_is_required(places, tmp_path, near):
    record = publish_launch(Store(places.far, trust=OFF, location="far"), tmp_path / "source")
    places.near.failure = unavailable("connection refused", transport=True)
    places.near.fails_on = frozenset({"put_new"})
    store = places.store(near)
    if near == "required":
        with pytest.raises(StoreUnavailable, match="required store near"):
            store.fetch_partitions(record.partitions, tmp_path / "cache")
        return
    outcome = store.fetch_partitions(record.partitions, tmp_path / "cache")
    assert (len(outcome.partitions), outcome.faults) == (1, ())
    assert ["connection refused" in line for line in store.problems] == [True]


def test_store_without_its_far_place_goes_on_and_says_that_it_is_behind(places, tmp_path):
    places.far.failure = unavailable("connection refused", transport=True)
    store = places.store()
    record = publish_launch(store, tmp_path / "cache")
    assert store.launches(record.launch_key) == (record,)
    assert store.behind
    assert [(tier.location, tier.state, tier.reason) for tier in store.tiers] == [
        ("near", "used", ""),
        ("far", "away", "connection refused"),
    ]
    assert ["connection refused" in line for line in store.problems] == [True]


def test_required_place_that_is_away_fails_every_verb(places, tmp_path):
    places.far.failure = unavailable("connection refused", transport=True)
    store = places.store(far="required")
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


def test_manifest_that_a_launch_does_not_pin_is_found(audited, root, tmp_path):
    for path in stored(root, "ac"):
        path.unlink()
    publish_launch(audited, tmp_path / "cache", world_size=2, created="2026-02-01T00:00:00+00:00")
    faults = audited.verify().faults
    assert len(faults) == 2
    assert all("another one than it pins" in fault for fault in faults)
    (repair,) = audited.verify(repair=True).repairs
    assert repair.endswith("moved into quarantine; another record of this launch is whole")
    assert (len(audited.launches()), audited.verify().faults) == (1, ())


def test_record_without_another_one_keeps_what_it_has(audited, root):
    stored(root, "ac")[0].unlink()
    assert audited.verify(repair=True).repairs == ()
    assert len(audited.launches()) == 1


@pytest.mark.parametrize("other", ["of fewer ranks", "elsewhere", "without a blob", "pinned itself"])
def test_record_stays_if_it_is_pinned_or_no_other_one_of_its_ranks_is_whole(audited, root, tmp_path, other):
    if other == "pinned itself":
        audited.pin(stored(root, "launch")[0].name)
    for path in stored(root, "ac"):
        path.unlink()
    publish_launch(
        audited,
        tmp_path / "cache",
        world_size=1 if other == "of fewer ranks" else 2,
        environment={**ENVIRONMENT, "torch": "2.14.0" if other == "elsewhere" else ENVIRONMENT["torch"]},
        created="2026-02-01T00:00:00+00:00",
    )
    if other == "without a blob":
        blob_path(root, DECODE).unlink()
    assert audited.verify(repair=True).repairs == ()
    assert len(audited.launches()) == 2


@pytest.mark.parametrize("place", ["cas/sha256/ab/README", "ac/README", "launch/ab/README"])
def test_stranger_is_found(audited, root, place):
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).touch()
    assert [place in fault for fault in audited.verify().faults] == [True]


def test_repair_brings_back_what_lies_in_the_trash(audited, root):
    path = blob_path(root, DECODE)
    target = root / "trash/20260101T000000Z" / path.relative_to(root)
    target.parent.mkdir(parents=True)
    path.rename(target)
    assert audited.verify(repair=True).repairs == (
        f"{path.relative_to(root).as_posix()}: restored from the trash",
    )
    assert audited.verify().faults == ()


@pytest.mark.parametrize("kind", ["cas", "ac"])
def test_repair_brings_back_what_is_whole_in_quarantine(audited, root, kind):
    path = stored(root, kind)[0]
    name, data = path.relative_to(root).as_posix(), path.read_bytes()
    backend_of(audited).put_new([new_file(quarantine_name(name, "damaged"), b"damaged")])
    backend_of(audited).move(name, quarantine_name(name, "good"))
    assert audited.verify(repair=True).repairs == (f"{name}: put again from quarantine",)
    assert (path.read_bytes(), audited.verify().faults) == (data, ())


def test_repair_brings_back_no_manifest_that_is_not_believed_or_not_pinned(root, tmp_path):
    ours, other = generate_key_pair("ours"), generate_key_pair("other")
    both = {"ours": ours.public_key, "other": other.public_key}
    theirs = open_store(root, Trust(policy="require", signer=other, trusted=both))
    publish_launch(theirs, tmp_path / "cache")
    (path,) = stored(root, "ac")
    name = path.relative_to(root).as_posix()
    backend_of(theirs).move(name, quarantine_name(name, "theirs"))
    (ref,) = publish_launch(theirs, tmp_path / "cache", created="2026-02-01T00:00:00+00:00").partitions
    stored(root, "launch")[0].unlink()
    stored(root, "launch")[0].unlink()
    store = open_store(root, Trust(policy="require", signer=ours, trusted=both))
    store.commit_launch(make_record((ref,)))
    backend_of(store).move(name, None)
    assert store.verify(repair=True).repairs == ()  # what lies there is not the one that the record pins
    (ref,) = publish_launch(theirs, tmp_path / "cache", created="2026-03-01T00:00:00+00:00").partitions
    store.commit_launch(make_record((ref,), created="2026-03-01T00:00:00+00:00"))
    backend_of(store).move(name, quarantine_name(name, "pinned"))
    wary = open_store(root, Trust(policy="require", signer=ours))
    assert wary.verify(repair=True).repairs == ()
    assert f"{name}: put again from quarantine" in store.verify(repair=True).repairs


def test_repair_looks_through_the_cache_directory_once(audited, root, tmp_path, monkeypatch):
    cache, walks = tmp_path / "cache", list[Path]()
    for path in stored(root, "cas"):
        path.unlink()
    really = Path.rglob

    def rglob(self: Path, pattern: str) -> Iterator[Path]:
        walks.extend([self] if self == cache else [])
        return really(self, pattern)

    monkeypatch.setattr(Path, "rglob", rglob)
    assert len(audited.verify(repair=True, cache_root=cache).repairs) > 1
    assert (len(walks), audited.verify().faults) == (1, ())


def test_blob_that_was_put_again_while_it_was_read_stays(audited, root, monkeypatch):
    path = blob_path(root, DECODE)
    overwrite(path, bytes([DECODE[0] ^ 1]) + DECODE[1:])
    real = backend_of(audited).open
    seen: list[str] = []

    def open_file(name: str) -> BinaryIO:
        if not name.endswith(path.name) or seen:
            return real(name)
        seen.append(name)
        with real(name) as file:
            data = file.read()
        overwrite(path, DECODE)
        return io.BytesIO(data)

    monkeypatch.setattr(backend_of(audited), "open", open_file)
    report = audited.verify(repair=True)
    assert (seen != [], report.faults, report.repairs) == (True, (), ())
    assert path.read_bytes() == DECODE


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


@pytest.mark.parametrize(
    ("trust", "digest"),
    [
        (OFF, "0ed074bca44c8b7fa50e06f6c69d874b9d6790eeb49be302be31bb25f750d6dd"),
        (SIGNED, "806bdb72e0b60291403ae4cb297bdd7aa81fe5aa612ce10a897644a4d87a6542"),
    ],
    ids=["unsigned", "signed"],
)
def test_store_tree_of_a_launch_has_the_bytes_that_it_always_had(trust: Trust, digest: str, tmp_path: Path):
    root = tmp_path / "store"
    publish_launch(open_store(root, trust), tmp_path / "cache", world_size=2, elsewhere={1: OTHER})
    lines = [f"{name} {hashlib.sha256(data).hexdigest()}\n" for name, data in tree(root).items()]
    assert (len(lines), hashlib.sha256("".join(lines).encode()).hexdigest()) == (6, digest)


HEAVY = {"pydantic", "cryptography", "filelock", "torch", "ray", "ctypes", "asyncio"}


def test_warm_load_imports_the_standard_library_only():
    statement = "import sys; from warmrank.cache_store.cache_dir import local, marks"
    modules = python("-c", f"{statement}; print(*{{name.partition('.')[0] for name in sys.modules}})")
    assert set(modules.split()) & HEAVY == set()


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


def test_damaged_record_does_not_hide_the_others(store, root, ref):
    good = make_record((ref,), created=LATE)
    store.commit_launch(make_record((ref,), environment={}, created=EARLY))
    (bad,) = stored(root, "launch")
    store.commit_launch(good)
    overwrite(bad, b"")
    assert store.launches() == (good,)


KEY, OTHER_KEY = "ab" * 32, "cd" * 32


def inventory(memory: Evicting) -> Inventory:
    return take_inventory(memory.places, memory.backend.now_s, trust=OFF)


def test_document_under_the_name_of_another_is_corrupt(memory):
    record = memory.launch()
    sealed = read_stored_form(memory.places, record)
    for name in (
        record_name("launch", LAUNCH_KEY, OTHER_KEY),
        record_name("launch", KEY, OTHER_KEY),
        f"dir/ab/{KEY}/{OTHER_KEY}",
        f"ac/ab/{KEY}",
    ):
        with pytest.raises(Corrupt):
            references(name, sealed)


def test_manifest_in_the_trash_counts_while_a_standing_record_needs_it(memory):
    memory.launch()
    (manifest,) = memory.names("ac/")
    assert memory.backend.move(manifest, f"trash/20260131T120000Z/{manifest}")
    found = inventory(memory)
    assert set(found.documents[manifest].references) == memory.names("cas/")
    assert manifest not in found.files
    assert manifest in found.trash


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


def test_launches_come_newest_first_by_the_store_s_clock(store, ref):
    for created in (LATE, LATEST, EARLY):  # whatever the clocks of their nodes say
        environment = {**ENVIRONMENT, "made": created}
        store.commit_launch(make_record((ref,), created=created, environment=environment))
    assert [record.created for record in store.launches(LAUNCH_KEY)] == [EARLY, LATEST, LATE]
    assert store.problems == []
