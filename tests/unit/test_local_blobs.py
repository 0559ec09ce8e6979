"""Which blobs a place lacks, and what happens where one of several places is away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.support.backends import MemoryBackend
from warmrank.cache_store.backends.backend import FileInfo, NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.publish.publish import LocalBlobs, absent_blobs
from warmrank.cache_store.records import documents
from warmrank.cache_store.records.documents import quarantine

DATA = b"bytes of an artifact"
DIGEST = digest_bytes(DATA)
NAME = blob_name(DIGEST.sha256)
WANTED = {NAME: DIGEST}


class Away(MemoryBackend):
    """A place that can be neither looked at nor written."""

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        raise StoreUnavailable(what="files", where="far", reason="Input/output error")

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        raise StoreUnavailable(what="files", where="far", reason="Input/output error")


class Stuck(MemoryBackend):
    """A place in which nothing can be moved, as in a directory of others with the sticky bit."""

    def move(self, name: str, target: str | None) -> bool:
        raise StoreUnavailable(what="file", where=name, reason="Operation not permitted")


class Forgetful(MemoryBackend):
    """A place that says it has everything, and has nothing."""

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        return ()


def holding(data: bytes = DATA, expected: Digest = DIGEST) -> MemoryBackend:
    backend = MemoryBackend()
    backend.put_new([NewFile(name=blob_name(expected.sha256), source=data, expected=digest_bytes(data))])
    return backend


def tiered(near: MemoryBackend, far: MemoryBackend, *, required: bool = False) -> TieredBackend:
    mode: TierMode = "required" if required else "rw"
    return TieredBackend([Tier(name="near", backend=near), Tier(name="far", backend=far, mode=mode)])


def stuck() -> Stuck:
    backend = Stuck()
    backend.put_new([NewFile(name=NAME, source=b"short", expected=digest_bytes(b"short"))])
    return backend


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    path = tmp_path / "compiled_module"
    path.write_bytes(DATA)
    path.chmod(0o600)
    return LocalBlobs(digests={str(path): DIGEST}, index=DigestIndex(tmp_path, "one"))


def test_blob_of_another_size_is_absent_and_in_quarantine():
    backend = holding(b"short")
    assert absent_blobs(backend, WANTED) == {NAME}
    assert [info.name.partition("/")[0] for info in backend.list("")] == ["quarantine"] * 2


def test_only_place_that_is_away_is_an_error():
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        absent_blobs(Away(), WANTED)


def test_put_again_brings_back_what_is_gone(blobs):
    backend = MemoryBackend()
    assert blobs.put_again(backend, [DIGEST]) == frozenset()
    assert list(backend.stat([NAME])) == [NAME]


def test_put_again_names_what_is_not_here(blobs):
    other = digest_bytes(b"of another publisher")
    assert blobs.put_again(MemoryBackend(), [DIGEST, other]) == {blob_name(other.sha256)}


@pytest.mark.parametrize("as_tier", [False, True])
def test_bad_blob_that_cannot_be_moved_is_an_error(blobs, as_tier):
    """Otherwise the publish would be acknowledged, and every fetch of it fail."""
    backend = TieredBackend([Tier(name="far", backend=stuck())]) if as_tier else stuck()
    for put in (lambda: blobs.put(backend, make_durable=True), lambda: blobs.put_again(backend, [DIGEST])):
        with pytest.raises(StoreUnavailable, match="not permitted"):
            put()


@pytest.mark.parametrize("as_tier", [False, True])
def test_blob_that_is_not_there_after_it_was_put_is_an_error(blobs, as_tier):
    backend = TieredBackend([Tier(name="far", backend=Forgetful())]) if as_tier else Forgetful()
    for put in (lambda: blobs.put(backend, make_durable=True), lambda: blobs.put_again(backend, [DIGEST])):
        with pytest.raises(StoreUnavailable, match="it was put, and is not there"):
            put()


def test_directory_in_the_place_of_a_blob_is_moved_away_whatever_its_size(blobs, root):
    backend = DirectoryBackend(root)
    (root / NAME).mkdir(parents=True)
    size_bytes = backend.stat([NAME])[NAME].stored_bytes
    assert absent_blobs(backend, {NAME: Digest(sha256=DIGEST.sha256, size_bytes=size_bytes)}) == {NAME}
    assert blobs.put(backend, make_durable=True) == (DIGEST,)


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


def test_reason_of_a_quarantine_lies_only_where_the_file_was_moved():
    near, far = holding(b"short"), MemoryBackend()
    quarantine(tiered(near, far), NAME, "too short")
    assert [len(list(place.list("quarantine/"))) for place in (near, far)] == [2, 0]


@pytest.mark.parametrize("host", ["h", "h" * 64])
@pytest.mark.parametrize("part", ["x" * 200, "\u00e9" * 127])
def test_long_name_can_go_into_quarantine(root, monkeypatch, host, part):
    monkeypatch.setattr(documents, "temporary_name", lambda: f"{host}-4194304-{'0' * 32}")
    backend = DirectoryBackend(root)
    name = f"launch/ab/{'1' * 64}/{part}"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b"junk")
    quarantine(backend, name, "no launch record")
    assert len(list(backend.list("quarantine/"))) == 2
    assert not list(backend.list("launch/"))
