from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import MemoryBackend
from warmrank.cache_store.cache_dir.marks import Permit
from warmrank.cache_store.digests import CHUNK_BYTES, digest_bytes
from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.fetch.blobs import Blobs, BlobSource, clone, copy_blob
from warmrank.cache_store.layout import blob_name

DATA = os.urandom(3 * CHUNK_BYTES + 17)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.touch(0o600)
    path.write_bytes(DATA)
    return path


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend()
    store(backend, DATA, DATA)
    return backend


def store(backend: MemoryBackend, named: bytes, data: bytes) -> None:
    backend._files[blob_name(digest_bytes(named).sha256)] = data
    backend._times[blob_name(digest_bytes(named).sha256)] = backend.now_s


def blob(backend: MemoryBackend, size_bytes: int | None = len(DATA)) -> BlobSource:
    blobs = Blobs(backend=backend, permit=Permit(Path("/")))
    return BlobSource(blobs=blobs, sha256=digest_bytes(DATA).sha256, size_bytes=size_bytes)


def kernel_cannot(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*args: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse)


def test_clone_is_a_private_copy_of_its_own(source, tmp_path):
    counted: list[int] = []
    clone(source, tmp_path / "clone", counted.append)
    status = (tmp_path / "clone").stat()
    assert (tmp_path / "clone").read_bytes() == DATA
    assert (stat.S_IMODE(status.st_mode), status.st_nlink, sum(counted)) == (0o600, 1, len(DATA))
    assert not source.samefile(tmp_path / "clone")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_clone_that_fails_leaves_nothing(source, tmp_path, monkeypatch, number):
    kernel_cannot(monkeypatch, number)
    counted: list[int] = []
    with pytest.raises(UnusableCache, match=os.strerror(number)):
        clone(source, tmp_path / "clone", counted.append)
    assert not (tmp_path / "clone").exists()
    assert sum(counted) == 0


@pytest.mark.parametrize("size_bytes", [len(DATA), None])
@pytest.mark.parametrize("bad", [DATA[:-1], b"", DATA + b"x", bytes(len(DATA))])
def test_damaged_blob_leaves_nothing_and_goes_into_quarantine(backend, tmp_path, bad, size_bytes):
    store(backend, DATA, bad)
    counted: list[int] = []
    with pytest.raises(Corrupt):
        copy_blob(blob(backend, size_bytes), tmp_path / "copy", counted.append)
    assert not (tmp_path / "copy").exists()
    assert sum(counted) == 0
    assert len(list(backend.list("quarantine/"))) == 2


def test_blob_that_is_too_long_is_not_read_to_its_end(backend, tmp_path, monkeypatch):
    monkeypatch.setattr("warmrank.cache_store.fetch.blobs.MAX_BLOB_BYTES", CHUNK_BYTES)
    counted: list[int] = []
    with pytest.raises(Corrupt, match=f"at most {CHUNK_BYTES} bytes"):
        copy_blob(blob(backend, None), tmp_path / "copy", counted.append)
    assert max(counted) == CHUNK_BYTES
    assert len([num_bytes for num_bytes in counted if num_bytes > 0]) == 2
