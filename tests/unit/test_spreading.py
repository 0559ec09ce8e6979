"""What a fetch brings into the nearer places, and what its caller hears when it is tried again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support.backends import WaywardBackend, new_file
from tests.support.stored import OFF, publish_launch
from warmrank.cache_store.backends.places import Tier, TieredBackend
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.layout import BLOBS, LAUNCHES, MANIFESTS
from warmrank.cache_store.progress import Progress
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.cache_store.store import Store


class SilentAtBlobs(WaywardBackend):
    """Hangs, at pings too, from the first blob on that is read."""

    def open(self, name: str) -> BinaryIO:
        self.hangs = self.hangs or name.startswith(BLOBS)
        return super().open(name)


class Places:
    """A far place with a launch, and a near one that is empty."""

    def __init__(self, source: Path) -> None:
        self.near, self.far = WaywardBackend(), WaywardBackend()
        far = Store(self.far, trust=OFF, location="far")
        self.record: LaunchRecord = publish_launch(far, source, world_size=2)

    def both(self) -> Store:
        tiers = [Tier(name="near", backend=self.near), Tier(name="far", backend=self.far)]
        return Store(TieredBackend(tiers), trust=OFF, location="both")

    def fetch(self, cache: Path, *, look_first: bool = True) -> Store:
        store = self.both()
        if look_first:
            store.launches(self.record.launch_key)
        assert store.fetch_partitions(self.record.partitions, cache).faults == ()
        return store

    def near_names(self, prefix: str) -> set[str]:
        return {info.name for info in self.near.list(prefix)}


@pytest.fixture
def places(source: Path) -> Places:
    return Places(source)


def names(backend: WaywardBackend, *prefixes: str) -> set[str]:
    return {info.name for prefix in prefixes for info in backend.list(prefix)}


def test_fetch_into_a_directory_that_has_all_fills_the_near_place_with_all(places, source):
    places.fetch(source)
    assert names(places.near, BLOBS) == names(places.far, BLOBS) != set()
    assert names(places.near, MANIFESTS, LAUNCHES) == names(places.far, MANIFESTS, LAUNCHES)


def test_partition_with_a_fault_is_not_brought_near(places, tmp_path):
    blob, *_ = sorted(names(places.far, BLOBS))
    places.far.move(blob, None)
    assert places.both().fetch_partitions(places.record.partitions, tmp_path / "cache").partitions == ()
    assert places.near_names("") == {"FORMAT"}


def test_fetch_left_behind_by_a_silent_place_tells_its_caller_nothing_more(places, source, tmp_path):
    near = SilentAtBlobs()
    near.put_new([new_file(info.name, places.far.open(info.name).read()) for info in places.far.list(BLOBS)])
    tiers = [
        Tier(name="near", backend=near, answer_s=0.5),
        Tier(name="far", backend=places.far, answer_s=60.0),
    ]
    heard: list[Progress] = []
    store = Store(TieredBackend(tiers), trust=OFF, location="both")
    outcome = store.fetch_partitions(
        places.record.partitions, tmp_path / "cache", options=FetchOptions(on_progress=heard.append)
    )
    assert (outcome.faults, [tier.state for tier in store.tiers]) == ((), ["away", "used"])
    before = list(heard)
    left_behind = [thread for thread in threading.enumerate() if thread.name == "store-verb"]
    near.thaw()
    for thread in left_behind:
        thread.join(60)
    assert left_behind
    assert heard == before != []
