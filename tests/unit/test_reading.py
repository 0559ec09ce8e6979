"""A file that one place can open and then not read is read from the next."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.backends import UnreadableBackend, new_file, unavailable
from warmrank.cache_store.backends.places import Tier, TieredBackend
from warmrank.cache_store.cache_dir.marks import Permit
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.fetch.blobs import Blobs
from warmrank.cache_store.layout import blob_name

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

    def copy(self, path: Path) -> list[int]:
        """What was counted while the blob was copied to ``path``."""
        counted: list[int] = []
        Blobs(backend=self.view, permit=Permit(path.parent)).copy(DIGEST, path, counted.append)
        return counted


@pytest.fixture
def places() -> Places:
    return Places()


def test_blob_that_the_near_place_cannot_read_is_read_from_the_far_one(places, tmp_path):
    places.near.failure, places.near.readable_bytes = bad_sector(), 3
    counted = places.copy(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA
    assert sum(counted) == len(DATA) < sum(abs(number) for number in counted)
    assert [("store near" in line, os.strerror(errno.EIO) in line) for line in places.view.problems] == [
        (True, True)
    ]
    assert [tier.circuit.is_open for tier in places.view.tiers] == [False, False]


def test_blob_that_no_place_can_read_is_unavailable_and_leaves_nothing(places, tmp_path):
    places.near.failure = places.far.failure = bad_sector()
    with pytest.raises(StoreUnavailable, match=os.strerror(errno.EIO)):
        places.copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_view_that_was_left_reads_nothing_elsewhere(places):
    places.far.failure = bad_sector()
    with places.view.open(DOCUMENT):
        places.view.leave()
    with pytest.raises(StoreUnavailable, match="given up"):
        places.view.read_elsewhere(DOCUMENT, unavailable())
