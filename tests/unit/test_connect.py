from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backends import WaywardBackend, unavailable
from tests.support.stored import LAUNCH_KEY, OFF, make_partition
from warmrank.cache_store import connect
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.deadline import Ticks
from warmrank.cache_store.backends.places import Circuits
from warmrank.cache_store.connect import TierSpec, is_left_alone, open_store
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreUnavailable
from warmrank.cache_store.store import Store

OPEN_BACKEND = connect.open_backend


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_circuits", Circuits())


@pytest.fixture
def near(tmp_path: Path) -> TierSpec:
    return TierSpec(location=str(tmp_path / "near"))


@pytest.fixture
def far(tmp_path: Path) -> TierSpec:
    return TierSpec(location=str(tmp_path / "far"))


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[TierSpec]:
    """A place whose opening never ends."""
    spec = TierSpec(location="/hangs", answer_s=0.2)
    released = threading.Event()

    def open_backend(spec: TierSpec, *, create: bool) -> BlobBackend:
        if spec.location == "/hangs":
            released.wait()
            raise unavailable()
        return OPEN_BACKEND(spec, create=create)

    monkeypatch.setattr(connect, "open_backend", open_backend)
    yield spec
    released.set()


def changed(spec: TierSpec, **fields: object) -> TierSpec:
    values = {name: getattr(spec, name) for name in TierSpec.__slots__}
    return TierSpec(**{**values, **fields})


def states(store: Store) -> list[tuple[str, str]]:
    return [(tier.location.rpartition("/")[2], tier.state) for tier in store.tiers]


def test_unknown_scheme_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"ftp://bucket/x"):
        open_store([TierSpec(location="ftp://bucket/x")], trust=OFF)
    assert list(tmp_path.iterdir()) == []


def spoil(spec: TierSpec, text: str) -> None:
    """Make a store of a place, and then its FORMAT unreadable."""
    open_store([spec], trust=OFF)
    path = Path(spec.location, "FORMAT")
    path.chmod(0o600)
    path.write_text(text)


UNREADABLE = pytest.mark.parametrize(
    ("text", "error"), [("", Corrupt), ('{"format":9}', NewerFormat)], ids=["damaged", "newer"]
)


@UNREADABLE
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_place_that_cannot_be_read_as_a_store_is_left_out(near, far, mode, text, error):
    spoil(near, text)
    open_store([far], trust=OFF)
    store = open_store([changed(near, mode=mode), changed(far, mode="required")], trust=OFF)
    assert states(store) == [("far", "used"), ("near", "away")]
    assert [near.location in line for line in store.problems] == [True]
    assert store.is_behind == (mode == "rw")
    assert not is_left_alone(near.location, {})


@UNREADABLE
def test_required_place_that_cannot_be_read_as_a_store_is_an_error(near, far, text, error):
    spoil(far, text)
    with pytest.raises(error):
        open_store([near, changed(far, mode="required")], trust=OFF)


def test_hanging_place_among_others_is_left_out(near, hanging):
    store = open_store([near, hanging], trust=OFF)
    assert states(store) == [("near", "used"), ("hangs", "away")]
    assert ["no answer within 0.2 s" in line for line in store.problems] == [True]
    assert store.is_behind


def test_hanging_place_that_is_the_only_one_is_an_error(hanging):
    with pytest.raises(StoreUnavailable, match="no answer within") as caught:
        open_store([hanging], trust=OFF)
    assert not caught.value.required


def test_several_hanging_places_are_waited_for_side_by_side(near, hanging, monkeypatch):
    """One after the other they would take four ticks."""
    waits: list[float] = []

    def wait(event: threading.Event, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return False

    monkeypatch.setattr(connect, "Ticks", lambda: Ticks(clock=lambda: 100.0 * len(waits), wait=wait))
    specs = [changed(hanging, options={"number": str(number)}) for number in range(2)]
    with pytest.raises(StoreUnavailable):
        open_store(specs, trust=OFF)
    assert len(waits) == 2 + 1  # 0.2 s are two ticks; then one look at each


@pytest.mark.parametrize("mode", ["ro", "rw", "required"])
def test_object_store_is_opened_as_its_mode_says(monkeypatch, mode):
    asked: list[tuple[str, object, object, object]] = []

    class FakeObjects(WaywardBackend):
        def __init__(self, url, *, create, writable, answer_s, options):
            super().__init__()
            asked.append((url, create, writable, dict(options)))

    monkeypatch.setattr("warmrank.cache_store.backends.objects.store.ObjectBackend", FakeObjects)
    open_store([TierSpec(location="s3://bucket/x", mode=mode, options={"region": "r"})], trust=OFF)
    assert asked == [("s3://bucket/x", mode == "rw", mode != "ro", {"region": "r"})]


def test_partition_goes_into_both_places_and_comes_out_of_the_near_one_alone(near, far, tmp_path):
    store = open_store([near, far], trust=OFF)
    manifest = make_partition(tmp_path / "cache")
    ref = store.publish_partition(LAUNCH_KEY, manifest, tmp_path / "cache").ref
    assert not store.is_behind
    outcome = open_store([near], trust=OFF).fetch_partitions([ref], tmp_path / "fetched")
    assert [len(outcome.partitions), len(outcome.faults)] == [1, 0]
