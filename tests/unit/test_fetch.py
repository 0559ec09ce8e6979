"""Fetching: what arrives is whole, verified and private, or nothing does."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from cache_store.digests import digest_bytes
from cache_store.errors import Corrupt, NotInStore, StoreUnavailable, UnusableCache
from cache_store.local import UNVERIFIED, variants
from cache_store.store import Store
from tests.support.stored import (
    FUNCTIONS,
    LAUNCH_KEY,
    blob_path,
    function_dir,
    make_partition,
    open_store,
    overwrite,
    stored,
)
from tests.support.stored import tree as all_files

DECODE = FUNCTIONS["Llama.decode"]
DAMAGE = {
    "truncated blob": DECODE[:-1],
    "flipped bit": bytes([DECODE[0] ^ 1]) + DECODE[1:],
    "wrong digest": b"another artifact altogether",
    "appended": DECODE + b"x",
    "emptied": b"",
    "zeroed": bytes(len(DECODE)),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(root: Path) -> Store:
    return open_store(root)


@pytest.fixture
def key(store: Store, source: Path) -> str:
    return store.publish_partition(LAUNCH_KEY, make_partition(source), source).key


def tree(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_files(root).items() if name != UNVERIFIED}


def test_fetch_lays_out_what_was_published(store, key, source, cache):
    report = store.fetch_partition(key, cache)
    assert tree(cache) == tree(source)
    assert (report.partition, report.num_files, report.num_already_there) == ("world1global_rank0", 2, 0)
    assert report.bytes_copied == sum(len(data) for data in FUNCTIONS.values())


def test_fetched_files_are_private_copies(store, root, key, cache):
    store.fetch_partition(key, cache)
    path = function_dir(cache, "world1global_rank0", "decode") / "compiled_module"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_nlink == 1
    assert not path.samefile(blob_path(root, DECODE))


def test_second_fetch_copies_nothing(store, key, cache):
    store.fetch_partition(key, cache)
    report = store.fetch_partition(key, cache)
    assert (report.bytes_copied, report.num_already_there) == (0, 2)


def test_fetch_adds_a_variant_beside_what_is_there(store, key, cache):
    make_partition(cache, functions={"Llama.decode": b"local variant"})
    store.fetch_partition(key, cache)
    found = variants(function_dir(cache, "world1global_rank0", "decode"))
    assert [path.read_bytes() for path in found] == [b"local variant", DECODE]


def test_fetch_brings_every_variant_of_a_function(store, source, cache, tmp_path):
    one = make_partition(source, functions={"Llama.decode": b"first"})
    two = make_partition(source, functions={"Llama.decode": b"second"})
    manifest = one.model_copy(update={"artifacts": one.artifacts + two.artifacts})
    store.fetch_partition(store.publish_partition(LAUNCH_KEY, manifest, source).key, cache)
    assert tree(cache) == tree(source)


def test_fetch_of_an_unknown_key_is_a_miss(store, cache):
    with pytest.raises(NotInStore, match="ac/00/"):
        store.fetch_partition("0" * 64, cache)
    assert not cache.exists()


def test_missing_blob_is_a_miss_and_nothing_is_laid_out(store, root, key, cache):
    blob_path(root, DECODE).unlink()
    with pytest.raises(NotInStore, match=r"of Llama\.decode"):
        store.fetch_partition(key, cache)
    assert tree(cache) == {}


def test_missing_blob_that_lies_in_the_cache_is_no_miss(store, root, key, cache):
    store.fetch_partition(key, cache)
    blob_path(root, DECODE).unlink()
    assert store.fetch_partition(key, cache).num_already_there == 2


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damaged_blob_is_quarantined_and_nothing_is_laid_out(store, root, key, cache, data):
    overwrite(blob_path(root, DECODE), data)
    with pytest.raises(Corrupt, match=digest_bytes(DECODE).sha256):
        store.fetch_partition(key, cache)
    assert tree(cache) == {}
    bad, reason = stored(root, "quarantine")
    assert bad.read_bytes() == data
    assert "corrupt" in reason.read_text()


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damaged_blob_is_repaired_by_publishing_again(store, root, key, source, cache, data):
    overwrite(blob_path(root, DECODE), data)
    with pytest.raises(Corrupt):
        store.fetch_partition(key, cache)
    store.publish_partition(LAUNCH_KEY, make_partition(source), source)
    store.fetch_partition(key, cache)
    assert tree(cache) == tree(source)


def test_damaged_blob_of_a_store_that_cannot_be_written_is_still_corrupt(
    store, root, key, cache, monkeypatch
):
    overwrite(blob_path(root, DECODE), b"x" * len(DECODE))

    def refuse(name: str, target: str | None) -> bool:
        raise StoreUnavailable(what=name, where=str(root), reason="Read-only file system")

    monkeypatch.setattr(store._backend, "move", refuse)
    with pytest.raises(Corrupt):
        store.fetch_partition(key, cache)


def test_swapped_blobs_are_corrupt(store, root, key, cache):
    for mine, other in (("Llama.decode", "Llama.prefill"), ("Llama.prefill", "Llama.decode")):
        overwrite(blob_path(root, FUNCTIONS[mine]), FUNCTIONS[other])
    with pytest.raises(Corrupt):
        store.fetch_partition(key, cache)
    assert tree(cache) == {}


def test_read_fault_of_the_store_is_unavailable_and_quarantines_nothing(store, root, key, cache, monkeypatch):
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    real = store._backend.open
    monkeypatch.setattr(store._backend, "open", lambda name: Failing() if "cas" in name else real(name))
    with pytest.raises(StoreUnavailable, match=os.strerror(errno.ESTALE)):
        store.fetch_partition(key, cache)
    assert (tree(cache), stored(root, "quarantine")) == ({}, [])


def test_full_local_disk_is_no_fault_of_the_store(store, root, key, cache, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnusableCache, match="No space left on device"):
        store.fetch_partition(key, cache)
    assert (tree(cache), stored(root, "quarantine")) == ({}, [])


def test_cache_directory_that_is_a_file_is_refused(store, key, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnusableCache):
        store.fetch_partition(key, tmp_path / "file")


def test_lock_that_is_held_is_not_waited_for_for_ever(store, key, source, cache, caplog):
    (cache / ".locks").mkdir(parents=True)
    with FileLock(cache / ".locks" / f"{key}.lock"):
        store.fetch_partition(key, cache, lock_timeout_s=0.0)
    assert tree(cache) == tree(source)
    assert "fetching beside its holder" in caplog.text


def test_file_system_without_locks_fetches_all_the_same(store, key, source, cache, monkeypatch, caplog):
    def no_locks(self: FileLock) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    store.fetch_partition(key, cache)
    assert tree(cache) == tree(source)
    assert "does not appear to support flock" in caplog.text


def test_threads_that_fetch_at_once_copy_once(store, root, key, source, cache):
    barrier = threading.Barrier(8)

    def run(_: int) -> int:
        barrier.wait()
        return open_store(root).fetch_partition(key, cache).bytes_copied

    with ThreadPoolExecutor(8) as pool:
        copied = list(pool.map(run, range(8)))
    assert sum(copied) == sum(len(data) for data in FUNCTIONS.values())
    assert tree(cache) == tree(source)


def test_threads_that_fetch_without_a_lock_agree(store, root, key, source, cache, monkeypatch):
    monkeypatch.setattr(FileLock, "acquire", lambda self: None)
    barrier = threading.Barrier(8)

    def run(_: int) -> None:
        barrier.wait()
        open_store(root).fetch_partition(key, cache)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert tree(cache) == tree(source)


def test_fetch_blob_adds_a_variant(store, key, tmp_path):
    path = store.fetch_blob(digest_bytes(DECODE).sha256, tmp_path / "decode")
    assert (path.name, path.read_bytes()) == ("compiled_module", DECODE)


def test_fetch_blob_of_an_unknown_digest_is_a_miss(store, tmp_path):
    with pytest.raises(NotInStore, match="0" * 64):
        store.fetch_blob("0" * 64, tmp_path / "decode")


def test_fetch_blob_refuses_what_is_no_digest(store, tmp_path):
    with pytest.raises(ValueError, match="64 lowercase hex"):
        store.fetch_blob("../../etc/passwd", tmp_path / "decode")


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_fetch_blob_quarantines_a_damaged_blob(store, root, key, tmp_path, data):
    overwrite(blob_path(root, DECODE), data)
    with pytest.raises(Corrupt):
        store.fetch_blob(digest_bytes(DECODE).sha256, tmp_path / "decode")
    assert variants(tmp_path / "decode") == ()
    assert len(stored(root, "quarantine")) == 2
