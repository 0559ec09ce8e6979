"""Upkeep of a store in two places, each of which has its own files and its own faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backends import WaywardBackend, new_file
from tests.support.stored import FUNCTIONS, OFF, publish_launch
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode, TierState
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import NotInStore
from warmrank.cache_store.gc.evict_plan import EvictPolicy
from warmrank.cache_store.layout import blob_name, pin_name
from warmrank.cache_store.store import Store

DAY_S = 86400.0
DECODE = blob_name(digest_bytes(FUNCTIONS["Llama.decode"]).sha256)
STRAY = blob_name(digest_bytes(b"stray").sha256)
AWAY = TierState(location="third", mode="rw", state="away", reason="third is silent")


class Both:
    """A near and a far place that hold one launch, and stores over both."""

    def __init__(self, work: Path) -> None:
        self.near, self.far = WaywardBackend(), WaywardBackend()
        publish_launch(self.store(), work)
        self.record = next(info.name for info in self.far.list("launch/"))

    def store(
        self, *, near: TierMode = "rw", far: TierMode = "rw", left_out: tuple[TierState, ...] = ()
    ) -> Store:
        tiers = [
            Tier(name="near", backend=self.near, mode=near),
            Tier(name="far", backend=self.far, mode=far),
        ]
        return Store(TieredBackend(tiers), trust=OFF, location="near, far", left_out=left_out)

    def age(self) -> None:
        """A blob that nothing needs appears in each place, and all becomes old."""
        for place in (self.near, self.far):
            place.put_new([new_file(STRAY, b"stray")])
            place.now_s += 3 * DAY_S

    def damage(self, place: WaywardBackend) -> None:
        place.move(DECODE, None)
        place.put_new([new_file(DECODE, b"damaged")])


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path / "cache")


def strays(place: WaywardBackend) -> bool:
    return bool(place.stat([STRAY]))


def test_every_writable_place_is_evicted_the_farthest_first(both):
    both.age()
    outcome = both.store().evict(EvictPolicy())
    assert [report.location for report in outcome.reports] == ["far", "near"]
    assert (strays(both.near), strays(both.far), outcome.faults) == (False, False, ())


def test_place_that_refuses_takes_nothing_from_the_report_of_the_other(both):
    both.age()
    both.far.put_new([new_file(f"ac/ab/{'ab' * 32}", b"no manifest")])
    outcome = both.store().evict(EvictPolicy())
    assert [report.location for report in outcome.reports] == ["near"]
    assert [(fault.location, "verify --repair" in fault.reason) for fault in outcome.faults] == [
        ("far", True)
    ]
    assert (strays(both.near), strays(both.far)) == (False, True)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("cas/", "damaged"),
        ("ac/", "damaged"),
        ("launch/", "damaged"),
        ("cas/", "missing"),
        ("ac/", "missing"),
    ],
)
def test_repair_takes_what_another_place_has_whole(both, kind, how):
    name = next(info.name for info in both.far.list(kind))
    good = both.near.open(name).read()
    both.far.move(name, None)
    if how == "damaged":
        both.far.put_new([new_file(name, good[:-1] + b"?")])
    report = both.store().verify(repair=True)
    assert f"far: {name}: put again from another place of the store" in report.repairs
    assert both.far.open(name).read() == good
    assert both.store().verify().faults == ()


@pytest.mark.parametrize("data", [b"damaged", b"X" * len(FUNCTIONS["Llama.decode"])])
@pytest.mark.parametrize("verb", ["fetch", "fetch_blob"])
def test_damaged_blob_in_a_read_only_near_place_hides_no_good_one(both, tmp_path, data, verb):
    both.near.move(DECODE, None)
    both.near.put_new([new_file(DECODE, data)])
    store, cache = both.store(near="ro"), tmp_path / "node"
    if verb == "fetch":
        (record,) = store.launches()
        assert store.fetch_partitions(record.partitions, cache).faults == ()
    else:
        path = store.fetch_blob(DECODE.rpartition("/")[2], cache / "f", cache_root=cache)
        assert path.read_bytes() == FUNCTIONS["Llama.decode"]


def test_repair_moves_damage_away_in_its_place_only(both):
    both.damage(both.near)
    report = both.store().verify(repair=True)
    assert report.repairs == (f"near: {DECODE}: moved into quarantine",)
    assert (len(both.near.stat([DECODE])), len(both.far.stat([DECODE]))) == (0, 1)


def test_what_the_farthest_place_lacks_is_a_fault_though_a_nearer_one_has_it(both):
    both.far.move(DECODE, None)
    (fault,) = both.store().verify().faults
    assert fault.startswith("far: ")
    assert "missing" in fault


def test_place_that_is_away_is_a_fault(both):
    assert both.store(left_out=(AWAY,)).verify().faults == ("third: third is silent",)


def test_pin_and_unpin_act_on_every_place(both):
    store, name = both.store(), pin_name(both.record)
    store.pin(both.record.rpartition("/")[2])
    assert [len(place.stat([name])) for place in (both.near, both.far)] == [1, 1]
    assert store.unpin(both.record.rpartition("/")[2]) == (both.record,)
    assert [len(place.stat([name])) for place in (both.near, both.far)] == [0, 0]


def test_pin_that_fails_leaves_none_in_any_place(both):
    for place in (both.near, both.far):
        for info in list(place.list("ac/")):
            place.move(info.name, None)
    with pytest.raises(NotInStore):
        both.store().pin(both.record.rpartition("/")[2])
    assert both.store().pins() == ()
