from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backends import WaywardBackend, unavailable
from tests.support.stored import (
    LAUNCH_KEY,
    OFF,
    make_partition,
    overwrite,
    publish_launch,
    stored,
    tree,
)
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode
from warmrank.cache_store.cache_dir.marks import UNVERIFIED
from warmrank.cache_store.errors import Corrupt, StoreUnavailable
from warmrank.cache_store.store import Store


@pytest.fixture
def key(store: Store, tmp_path: Path) -> str:
    manifest = make_partition(tmp_path / "cache")
    return store.publish_partition(LAUNCH_KEY, manifest, tmp_path / "cache").key


def test_flipped_bit_in_a_manifest_is_corrupt_and_quarantined(store, root, key):
    (path,) = stored(root, "ac")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    overwrite(path, bytes(data))
    with pytest.raises(Corrupt, match=key):
        store.manifest(key)
    assert stored(root, "ac") == []


def test_manifest_with_path_traversal_is_refused(store, root, key):
    (path,) = stored(root, "ac")
    payload = path.read_bytes().split(b"\n", 1)[1].replace(b'"Llama_dynamic', b'"../escaped')
    overwrite(path, OFF.seal("manifest", key, payload))
    with pytest.raises(Corrupt, match=r"has the part '\.\.'"):
        store.manifest(key)


def test_launch_goes_from_one_cache_to_another(store, root, tmp_path):
    record = publish_launch(store, tmp_path / "source", world_size=3)
    assert store.fetch_partitions(record.partitions, tmp_path / "cache").faults == ()
    (tmp_path / "cache" / UNVERIFIED).unlink()
    assert tree(tmp_path / "cache") == tree(tmp_path / "source")
    assert len(stored(root, "cas")) == 2


@pytest.fixture
def places() -> tuple[WaywardBackend, WaywardBackend]:
    """A near and a far place."""
    return WaywardBackend(), WaywardBackend()


def tiered(
    places: tuple[WaywardBackend, WaywardBackend], near: TierMode = "rw", far: TierMode = "rw"
) -> Store:
    tiers = [
        Tier(name="near", backend=places[0], mode=near),
        Tier(name="far", backend=places[1], mode=far),
    ]
    return Store(TieredBackend(tiers), trust=OFF, location="near, far")


def names(backend: WaywardBackend) -> set[str]:
    return {info.name for info in backend.list("") if not info.name.startswith("used/")}


def test_launch_goes_into_every_writable_place(places, tmp_path):
    store = tiered(places)
    publish_launch(store, tmp_path / "cache", world_size=2)
    assert names(places[0]) == names(places[1])
    assert (store.is_behind, store.problems) == (False, [])


def test_fetch_fills_the_near_place_so_that_it_serves_alone(places, tmp_path):
    far_only = Store(places[1], trust=OFF, location="far")
    record = publish_launch(far_only, tmp_path / "source", world_size=2)
    store = tiered(places)
    assert store.launches(record.launch_key) == (record,)
    store.fetch_partitions(record.partitions, tmp_path / "cache")
    near_only = Store(places[0], trust=OFF, location="near")
    assert near_only.launches(record.launch_key) == (record,)
    outcome = near_only.fetch_partitions(record.partitions, tmp_path / "again")
    assert (len(outcome.partitions), outcome.faults, near_only.problems) == (2, (), [])


def test_fetch_while_the_near_place_goes_away_is_a_problem_only(places, tmp_path):
    record = publish_launch(Store(places[1], trust=OFF, location="far"), tmp_path / "source")
    places[0].failure = unavailable("connection refused", transport=True)
    places[0].fails_on = frozenset({"put_new"})
    store = tiered(places)
    outcome = store.fetch_partitions(record.partitions, tmp_path / "cache")
    assert (len(outcome.partitions), outcome.faults) == (1, ())
    assert ["connection refused" in line for line in store.problems] == [True]


def test_fetch_while_a_required_near_place_goes_away_is_an_error_of_the_next_verb(places, tmp_path):
    record = publish_launch(Store(places[1], trust=OFF, location="far"), tmp_path / "source")
    places[0].failure = unavailable("connection refused", transport=True)
    places[0].fails_on = frozenset({"put_new"})
    store = tiered(places, near="required")
    store.fetch_partitions(record.partitions, tmp_path / "cache")
    with pytest.raises(StoreUnavailable, match="required store near"):
        store.launches()


def test_store_without_its_far_place_goes_on_and_says_that_it_is_behind(places, tmp_path):
    places[1].failure = unavailable("connection refused", transport=True)
    store = tiered(places)
    record = publish_launch(store, tmp_path / "cache")
    assert store.launches(record.launch_key) == (record,)
    assert store.is_behind
    assert [(tier.location, tier.state, tier.reason) for tier in store.tiers] == [
        ("near", "used", ""),
        ("far", "away", "connection refused"),
    ]
    assert ["connection refused" in line for line in store.problems] == [True]


def test_required_place_that_is_away_fails_every_verb(places, tmp_path):
    places[1].failure = unavailable("connection refused", transport=True)
    store = tiered(places, far="required")
    for verb in (lambda: publish_launch(store, tmp_path / "cache"), store.launches, store.verify):
        with pytest.raises(StoreUnavailable, match="connection refused") as caught:
            verb()
        assert caught.value.required
