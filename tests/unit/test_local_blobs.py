"""Which blobs a place lacks, and what happens where one of several places is away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.support.backends import MemoryBackend
from warmrank.cache_store.backends.backend import FileInfo, NewFile
from warmrank.cache_store.backends.places import Tier, TieredBackend
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.publish.local_blobs import LocalBlobs, absent_blobs

DATA = b"bytes of an artifact"
DIGEST = digest_bytes(DATA)
NAME = blob_name(DIGEST.sha256)
WANTED = {NAME: DIGEST}


class Forgetful(MemoryBackend):
    """A place that says it has everything, and has nothing."""

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        return ()


def holding(data: bytes = DATA, expected: Digest = DIGEST) -> MemoryBackend:
    backend = MemoryBackend()
    backend.put_new([NewFile(name=blob_name(expected.sha256), source=data, expected=digest_bytes(data))])
    return backend


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    path = tmp_path / "compiled_module"
    path.write_bytes(DATA)
    path.chmod(0o600)
    return LocalBlobs(digests={str(path): DIGEST}, index=DigestIndex.open(tmp_path, "one"))


def test_blob_of_another_size_is_absent_and_in_quarantine():
    backend = holding(b"short")
    assert absent_blobs(backend, WANTED) == {NAME}
    assert [info.name.partition("/")[0] for info in backend.list("")] == ["quarantine"] * 2


def test_put_again_brings_back_what_is_gone(blobs):
    backend = MemoryBackend()
    assert blobs.put_again(backend, [DIGEST]) == frozenset()
    assert list(backend.stat([NAME])) == [NAME]


@pytest.mark.parametrize("as_tier", [False, True])
def test_blob_that_is_not_there_after_it_was_put_is_an_error(blobs, as_tier):
    backend = TieredBackend([Tier(name="far", backend=Forgetful())]) if as_tier else Forgetful()
    for put in (lambda: blobs.put(backend, make_durable=True), lambda: blobs.put_again(backend, [DIGEST])):
        with pytest.raises(StoreUnavailable, match="it was put, and is not there"):
            put()


def test_blobs_that_were_put_are_not_looked_at_again(blobs, monkeypatch):
    backend = MemoryBackend()
    real = backend.stat
    looked: list[str] = []

    def look(names: Iterable[str]) -> dict[str, FileInfo]:
        looked.append("looked")
        return real(names)

    monkeypatch.setattr(backend, "stat", look)
    blobs.put(backend, make_durable=True)
    assert looked == ["looked"]
