"""Fetch: verified private copies of what a store holds, once a node."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from filelock import FileLock

from tests.support.backends import UnreadableBackend, new_file
from tests.support.stored import (
    FUNCTIONS,
    LAUNCH_KEY,
    backend_of,
    blob_path,
    function_dir,
    make_partition,
    overwrite,
    stored,
)
from tests.support.stored import tree as all_files
from warmrank.cache_store.backends.deadline import Tier
from warmrank.cache_store.backends.places import TieredBackend
from warmrank.cache_store.cache_dir.local import variants
from warmrank.cache_store.cache_dir.marks import UNVERIFIED, Permit
from warmrank.cache_store.cache_dir.single_flight import LOCKS
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError
from warmrank.cache_store.fetch.blobs import Blobs
from warmrank.cache_store.fetch.fetch import FetchReport
from warmrank.cache_store.layout import blob_name, manifest_name, trash_name
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.store import Store

DECODE = FUNCTIONS["Llama.decode"]
PREFILL = FUNCTIONS["Llama.prefill"]
ALL_BYTES = len(DECODE) + len(PREFILL)
DAMAGE = {
    "truncated blob": DECODE[:-1],
    "flipped bit": bytes([DECODE[0] ^ 1]) + DECODE[1:],
    "wrong digest": b"another artifact altogether",
    "appended": DECODE + b"x",
    "emptied": b"",
    "zeroed": bytes(len(DECODE)),
}


def publish(store: Store, source: Path, **changes: Any) -> PartitionRef:
    return store.publish_partition(LAUNCH_KEY, make_partition(source, **changes), source).ref


@pytest.fixture
def ref(store: Store, source: Path) -> PartitionRef:
    return publish(store, source)


def fetch(store: Store, refs: Sequence[PartitionRef], cache: Path, **options: Any) -> tuple[FetchReport, ...]:
    """Reports of a fetch that must not have a fault."""
    outcome = store.fetch_partitions(refs, cache, **options)
    assert outcome.faults == ()
    return outcome.partitions


def fault(store: Store, ref: PartitionRef, cache: Path) -> StoreError:
    """Why the only partition of a fetch is not laid out."""
    outcome = store.fetch_partitions([ref], cache)
    assert outcome.partitions == ()
    (found,) = outcome.faults
    assert found.ref == ref
    return found.error


def tree(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_files(root).items() if name != UNVERIFIED}


def count_opens(store: Store, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each name of the store is opened from now on."""
    opened: Counter[str] = Counter()
    real = backend_of(store).open

    def count(name: str) -> BinaryIO:
        opened[name] += 1
        return real(name)

    monkeypatch.setattr(backend_of(store), "open", count)
    return opened


def test_fetch_lays_out_what_was_published(store, ref, source, cache):
    (report,) = fetch(store, [ref], cache)
    assert tree(cache) == tree(source)
    assert (report.partition, report.num_files, report.num_already_there) == ("world1global_rank0", 2, 0)
    assert report.bytes_copied == ALL_BYTES


def test_fetched_files_are_private_copies(store, root, ref, cache):
    fetch(store, [ref], cache)
    path = function_dir(cache, "world1global_rank0", "decode") / "compiled_module"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_nlink == 1
    assert not path.samefile(blob_path(root, DECODE))


def test_many_partitions_read_each_blob_once(store, source, cache, monkeypatch):
    refs = [publish(store, source, rank=rank, world_size=3) for rank in range(3)]
    opened = count_opens(store, monkeypatch)
    outcome = store.fetch_partitions(refs, cache)
    assert {opened[blob_name(digest_bytes(data).sha256)] for data in FUNCTIONS.values()} == {1}
    assert tree(cache) == tree(source)
    assert (outcome.bytes_read, sum(report.bytes_copied for report in outcome.partitions)) == (
        ALL_BYTES,
        3 * ALL_BYTES,
    )


def test_damaged_local_copy_is_replaced_beside_it(store, ref, cache):
    fetch(store, [ref], cache)
    path = function_dir(cache, "world1global_rank0", "decode") / "compiled_module"
    path.write_bytes(b"")
    assert fetch(store, [ref], cache)[0].num_already_there == 1
    assert path.with_name("compiled_module.1").read_bytes() == DECODE


def test_missing_blob_is_a_miss_and_nothing_is_laid_out(store, root, ref, cache):
    blob_path(root, DECODE).unlink()
    error = fault(store, ref, cache)
    assert isinstance(error, NotInStore)
    assert "of Llama.decode" in str(error)
    assert tree(cache) == {}
    assert not (cache / UNVERIFIED).exists()


@pytest.mark.parametrize("what", ["blob", "manifest"])
def test_what_an_evict_just_took_comes_back(store, ref, source, cache, what):
    name = blob_name(digest_bytes(DECODE).sha256) if what == "blob" else manifest_name(ref.manifest_key)
    assert backend_of(store).move(name, trash_name(name, datetime.now(UTC)))
    fetch(store, [ref], cache)
    assert tree(cache) == tree(source)
    assert backend_of(store).stat([name])


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damaged_blob_is_quarantined_and_nothing_is_laid_out(store, root, ref, cache, data):
    overwrite(blob_path(root, DECODE), data)
    error = fault(store, ref, cache)
    assert isinstance(error, Corrupt)
    assert digest_bytes(DECODE).sha256 in str(error)
    assert tree(cache) == {}
    bad, reason = stored(root, "quarantine")
    assert bad.read_bytes() == data
    assert "corrupt" in reason.read_text()


@pytest.fixture
def fetch_decode(store: Store, cache: Path) -> Callable[[], Path]:
    return lambda: store.fetch_blob(digest_bytes(DECODE).sha256, cache / "decode", cache_root=cache)


@pytest.fixture
def unknown_sizes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store keeps blobs compressed, so only reading tells their sizes."""
    backend = backend_of(store)
    real = backend.stat

    def compressed(names: Any) -> Any:
        return {name: replace(info, content_bytes=None) for name, info in real(names).items()}

    monkeypatch.setattr(backend, "stat", compressed)


@pytest.mark.usefixtures("unknown_sizes")
def test_fetch_blob_of_unknown_size_is_verified_by_its_name(ref, root, fetch_decode, cache):
    assert fetch_decode() == fetch_decode()
    assert [path.read_bytes() for path in variants(cache / "decode")] == [DECODE]


def test_first_unchanged_fetch_reads_no_artifact_again(store, source, cache, monkeypatch):
    ref = publish(store, source)
    store.fetch_partitions([ref], cache)
    opened: list[str] = []
    real = os.open

    def noting(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", noting)
    outcome = store.fetch_partitions([ref], cache)
    assert (outcome.faults, outcome.bytes_read) == ((), 0)
    assert [name for name in opened if name.startswith("compiled_module")] == []


def test_whoever_waits_for_a_cache_directory_hears_that_its_files_are_read(store, ref, cache):
    fetch(store, [ref], cache)
    (beat_file := cache / LOCKS / "fetch.beat").unlink()
    fetch(store, [ref], cache)  # which only looks at what is there
    assert beat_file.exists()


def test_link_in_a_model_directory_leads_no_copy_away(store, source, cache, tmp_path):
    ref = publish(store, source)
    store.fetch_partitions([ref], cache)
    (model,) = cache.glob("Llama*")
    shutil.rmtree(model)
    (tmp_path / "away").mkdir(mode=0o700)
    model.symlink_to(tmp_path / "away")
    (fault,) = store.fetch_partitions([ref], cache).faults
    assert "expected a directory" in str(fault.error)
    assert list((tmp_path / "away").iterdir()) == []


def test_file_system_without_locks_fetches_all_the_same(store, ref, source, cache, monkeypatch, caplog):
    def no_locks(self: FileLock) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    fetch(store, [ref], cache)
    assert tree(cache) == tree(source)
    assert "does not appear to support flock" in caplog.text


DATA = b"the bytes of a blob"
DIGEST = digest_bytes(DATA)
BLOB = blob_name(DIGEST.sha256)
DOCUMENT = "ac/ab/one"


def bad_sector() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class Places:
    """A near and a far place that both have one blob and one document, and a view of both."""

    def __init__(self) -> None:
        self.near, self.far = UnreadableBackend(), UnreadableBackend()
        for place in (self.near, self.far):
            place.put_new([new_file(BLOB, DATA), new_file(DOCUMENT, DATA)])
        self.view = TieredBackend([Tier(name="near", backend=self.near), Tier(name="far", backend=self.far)])


def test_blob_that_the_near_place_cannot_read_is_read_from_the_far_one(tmp_path):
    places = Places()
    places.near.failure, places.near.readable_bytes = bad_sector(), 3
    Blobs(backend=places.view, permit=Permit(tmp_path)).copy(*DIGEST, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA
    assert [("store near" in line, os.strerror(errno.EIO) in line) for line in places.view.problems] == [
        (True, True)
    ]
    assert [tier.circuit.is_open for tier in places.view.tiers] == [False, False]
