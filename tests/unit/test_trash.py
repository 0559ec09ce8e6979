from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.backends import MemoryBackend
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.gc.trash import restore, restore_from, trashed
from warmrank.cache_store.layout import blob_name, trash_name

NAME, OTHER = blob_name("1" * 64), blob_name("2" * 64)
EARLY, LATE = (datetime(2026, month, 1, tzinfo=UTC) for month in (1, 2))


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


def put(backend: MemoryBackend, name: str, data: bytes = b"data") -> None:
    backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))])


def read(backend: MemoryBackend, name: str) -> bytes:
    with backend.open(name) as file:
        return file.read()


def test_restore_brings_back_what_is_gone(backend):
    put(backend, trash_name(NAME, EARLY))
    assert restore(backend, [NAME]) == {NAME}
    assert [info.name for info in backend.list("")] == [NAME]


def test_restore_takes_the_copy_that_came_last(backend):
    put(backend, trash_name(NAME, EARLY), b"older")
    backend.now_s += 1
    put(backend, trash_name(NAME, LATE), b"newer")
    restore(backend, [NAME])
    assert read(backend, NAME) == b"newer"


def test_file_that_another_process_restored_counts(backend):
    put(backend, trash_name(NAME, EARLY))
    contents = trashed(backend)
    backend.move(trash_name(NAME, EARLY), NAME)
    assert restore_from(backend, frozenset([NAME]), contents) == {NAME}
