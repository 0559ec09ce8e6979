"""Which blobs a place lacks, and what happens where one of several places is away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from cache_store.backends.backend import FileInfo, NewFile
from cache_store.backends.tier import Tier, TierMode
from cache_store.backends.tiers import TieredBackend
from cache_store.digests import Digest, digest_bytes
from cache_store.errors import StoreUnavailable
from cache_store.layout import blob_name
from cache_store.node.digest_index import DigestIndex
from cache_store.publishing.local_blobs import LocalBlobs, absent_blobs
from tests.support.memory_backend import MemoryBackend

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


def holding(data: bytes = DATA, expected: Digest = DIGEST) -> MemoryBackend:
    backend = MemoryBackend()
    backend.put_new([NewFile(name=blob_name(expected.sha256), source=data, expected=digest_bytes(data))])
    return backend


def tiered(near: MemoryBackend, far: MemoryBackend, *, required: bool = False) -> TieredBackend:
    mode: TierMode = "required" if required else "rw"
    return TieredBackend([Tier(name="near", backend=near), Tier(name="far", backend=far, mode=mode)])


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    path = tmp_path / "compiled_module"
    path.write_bytes(DATA)
    path.chmod(0o600)
    return LocalBlobs(digests={str(path): DIGEST}, index=DigestIndex.open(tmp_path, "one"))


def test_blob_that_is_there_is_not_absent():
    assert absent_blobs(holding(), WANTED) == frozenset()


def test_blob_of_another_size_is_absent_and_in_quarantine():
    backend = holding(b"short")
    assert absent_blobs(backend, WANTED) == {NAME}
    assert [info.name.partition("/")[0] for info in backend.list("")] == ["quarantine"] * 2


def test_blob_that_one_of_two_places_lacks_is_absent():
    assert absent_blobs(tiered(holding(), MemoryBackend()), WANTED) == {NAME}


def test_blob_that_only_a_place_that_is_never_written_has_is_absent():
    read_only = Tier(name="far", backend=holding(), mode="ro")
    backend = TieredBackend([Tier(name="near", backend=MemoryBackend()), read_only])
    assert absent_blobs(backend, WANTED) == {NAME}


def test_trash_of_each_place_is_looked_into():
    far = MemoryBackend()
    far.put_new([NewFile(name=f"trash/20260131T120000Z/{NAME}", source=DATA, expected=DIGEST)])
    assert absent_blobs(tiered(holding(), far), WANTED, restore=True) == frozenset()
    assert list(far.stat([NAME])) == [NAME]


def test_only_place_that_is_away_is_an_error():
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        absent_blobs(Away(), WANTED)


def test_required_place_that_is_away_is_an_error(blobs):
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        blobs.put(tiered(holding(), Away(), required=True), make_durable=False)


def test_put_goes_on_without_one_of_two_places(blobs):
    near = MemoryBackend()
    assert blobs.put(tiered(near, Away()), make_durable=False) == (DIGEST,)
    assert list(near.stat([NAME])) == [NAME]


def test_put_again_brings_back_what_is_gone(blobs):
    backend = MemoryBackend()
    assert blobs.put_again(backend, [DIGEST]) == frozenset()
    assert list(backend.stat([NAME])) == [NAME]


def test_put_again_names_what_is_not_here(blobs):
    other = digest_bytes(b"of another publisher")
    assert blobs.put_again(MemoryBackend(), [DIGEST, other]) == {blob_name(other.sha256)}
