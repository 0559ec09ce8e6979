"""What every `BlobBackend` promises; one suite for all implementations."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.backends import MemoryBackend, new_file, read
from tests.support.s3_server import PATIENT_S, S3Server, new_prefix
from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.backends.object_store import ObjectBackend
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreUnavailable, UnusableCache
from warmrank.cache_store.layout import FORMAT_FILE, blob_name

NAME = "ac/ab/one"
Request = pytest.FixtureRequest
IMPLEMENTATIONS: dict[str, Callable[[Path, Request], BlobBackend]] = {
    "directory": lambda root, _: DirectoryBackend(root),
    "directory-fsync": lambda root, _: DirectoryBackend(root, flush="fsync"),
    "memory": lambda _root, _: MemoryBackend(),
    "s3": lambda _root, request: object_backend(request.getfixturevalue("s3_server")),
}


def object_backend(server: S3Server) -> BlobBackend:
    return ObjectBackend(new_prefix(), answer_s=PATIENT_S, options=server.options)


# It keeps most of its code in common with the other.
SLOW = ("directory-fsync",)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in IMPLEMENTATIONS]
)
def backend(request: Request, tmp_path: Path) -> BlobBackend:
    return IMPLEMENTATIONS[request.param](tmp_path / "store", request)


def names(backend: BlobBackend, prefix: str) -> list[str]:
    return sorted(info.name for info in backend.list(prefix) if info.name != FORMAT_FILE)


def content_bytes(backend: BlobBackend, name: str) -> int:
    """Number of bytes, where the backend knows it without reading."""
    known = backend.stat([name])[name].content_bytes
    return len(read(backend, name)) if known is None else known


def private_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_put_new_does_not_replace(backend):
    backend.put_new([new_file(NAME, b"first")])
    assert backend.put_new([new_file(NAME, b"second")]) == ()
    assert read(backend, NAME) == b"first"


def test_put_new_names_only_what_it_created(backend):
    backend.put_new([new_file(NAME, b"first")])
    assert backend.put_new([new_file(NAME, b"first"), new_file("ac/ab/two", b"2")]) == ("ac/ab/two",)


def test_put_new_stores_many_at_once(backend):
    names = [f"cas/sha256/{number:02x}/{number}" for number in range(32)]
    backend.put_new([new_file(name, name.encode()) for name in names])
    assert [read(backend, name) for name in names] == [name.encode() for name in names]


@pytest.mark.parametrize("size_bytes", [3, 5])
def test_put_new_refuses_a_wrong_size(backend, size_bytes):
    expected = Digest(sha256=digest_bytes(b"data").sha256, size_bytes=size_bytes)
    with pytest.raises(Corrupt):
        backend.put_new([NewFile(name=NAME, source=b"data", expected=expected)])


def test_put_new_creates_no_name_of_a_batch_with_a_fault(backend):
    wrong = NewFile(name="ac/ab/two", source=b"data", expected=digest_bytes(b"other"))
    with pytest.raises(Corrupt):
        backend.put_new([new_file(NAME, b"first"), wrong])
    assert names(backend, "ac/") == []


def test_put_new_refuses_a_source_that_others_could_have_written(backend, tmp_path):
    source = private_file(tmp_path / "source", b"data")
    source.chmod(0o666)
    with pytest.raises(UnusableCache, match="chmod 600"):
        backend.put_new([NewFile(name=NAME, source=source, expected=digest_bytes(b"data"))])


def test_put_new_refuses_a_source_that_is_not_there(backend, tmp_path):
    gone = NewFile(name=NAME, source=tmp_path / "gone", expected=digest_bytes(b"data"))
    with pytest.raises(UnusableCache, match="No such file"):
        backend.put_new([gone])


def test_put_new_tells_a_fault_of_the_local_disk_from_one_of_the_store(backend, tmp_path, monkeypatch):
    class Bad(FileIO):
        def readinto(self, buffer: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def readall(self) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    source = private_file(tmp_path / "source", b"data")
    bad = BufferedReader(Bad(source))
    monkeypatch.setattr("warmrank.cache_store.backends.backend.open_private", lambda path: bad)
    with pytest.raises(UnusableCache, match=r"source: .*Input/output error"):
        backend.put_new([NewFile(name=NAME, source=source, expected=digest_bytes(b"data"))])
    assert not backend.stat([NAME])


def test_put_new_has_one_winner_among_threads(backend):
    num_threads = 16
    barrier = threading.Barrier(num_threads)

    def put(number: int) -> tuple[str, ...]:
        barrier.wait()
        created: tuple[str, ...] = backend.put_new([new_file(NAME, f"by {number}".encode())])
        return created

    with ThreadPoolExecutor(num_threads) as pool:
        created = list(pool.map(put, range(num_threads)))
    winners = [number for number, names in enumerate(created) if names]
    assert [f"by {number}".encode() for number in winners] == [read(backend, NAME)]


def test_open_misses_what_is_not_there(backend):
    with pytest.raises(NotInStore, match=NAME):
        backend.open(NAME)


def test_list_gives_names_by_prefix_which_may_end_within_a_part(backend):
    there = ("ac/ab/one", "ac/ab/on2", "ac/ab/two", "ac/cd/two", "launch/ab/one")
    backend.put_new([new_file(name, b"x") for name in there])
    assert names(backend, "ac/") == ["ac/ab/on2", "ac/ab/one", "ac/ab/two", "ac/cd/two"]
    assert names(backend, "ac/ab/on") == ["ac/ab/on2", "ac/ab/one"]


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "ac/../../outside", "", "ac//one", "ac/a\\b", "ac/a\nb"]
)
def test_name_that_no_store_gives_is_refused(backend, name):
    for call in (
        lambda: backend.open(name),
        lambda: backend.stat([name]),
        lambda: backend.move(name, None),
        lambda: backend.put_new([new_file(name, b"data")]),
    ):
        with pytest.raises(StoreUnavailable, match="name"):
            call()


def test_moved_name_can_be_put_again(backend):
    backend.put_new([new_file(NAME, b"bad")])
    backend.move(NAME, "quarantine/one")
    assert backend.put_new([new_file(NAME, b"good")]) == (NAME,)
    assert read(backend, NAME) == b"good"


def test_move_does_not_replace(backend):
    backend.put_new([new_file(NAME, b"one"), new_file("ac/ab/two", b"two")])
    assert not backend.move(NAME, "ac/ab/two")
    assert (read(backend, NAME), read(backend, "ac/ab/two")) == (b"one", b"two")


def test_move_to_nowhere_removes(backend):
    backend.put_new([new_file(NAME, b"data")])
    assert backend.move(NAME, None)
    assert names(backend, "") == []


def test_moved_blob_reads_the_same(backend):
    data = b"shrinks where blobs are compressed " * 1000
    blob = new_file(blob_name(digest_bytes(data).sha256), data)
    backend.put_new([blob])
    assert backend.move(blob.name, "quarantine/one")
    assert read(backend, "quarantine/one") == data


@pytest.mark.parametrize("target", ["trash/one", None])
def test_move_of_what_is_gone_is_no_error(backend, target):
    assert not backend.move(NAME, target)
    assert names(backend, "") == []


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def shared(request: Request, tmp_path_factory: pytest.TempPathFactory) -> BlobBackend:
    return IMPLEMENTATIONS[request.param](tmp_path_factory.mktemp("shared") / "store", request)


@settings(max_examples=10, deadline=None)  # each example waits for the disk
@given(data=st.binary(max_size=4096))
def test_put_new_round_trips_any_bytes(shared, data):
    name = f"cas/{digest_bytes(data).sha256}"
    shared.put_new([new_file(name, data)])
    assert (read(shared, name), content_bytes(shared, name)) == (data, len(data))
