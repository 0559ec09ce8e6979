"""Stores that are opened, and places that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.backends import WaywardBackend, new_file, unavailable
from tests.support.stored import OFF
from warmrank.cache_store import store as opening
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.deadline import TICK_S, Call, Ticks, Tier, TierMode, circuit_of
from warmrank.cache_store.backends.places import TieredBackend, read_from_any
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreUnavailable
from warmrank.cache_store.store import Store, TierSpec, open_store

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.fixture
def near(tmp_path: Path) -> TierSpec:
    return TierSpec(location=str(tmp_path / "near"))


@pytest.fixture
def far(tmp_path: Path) -> TierSpec:
    return TierSpec(location=str(tmp_path / "far"))


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[TierSpec]:
    """A place whose opening never ends."""
    released = threading.Event()
    really = opening.open_backend

    def open_backend(spec: TierSpec, *, create: bool) -> BlobBackend:
        if spec.location == "/hangs":
            released.wait()
            raise unavailable()
        return really(spec, create=create)

    monkeypatch.setattr(opening, "open_backend", open_backend)
    yield TierSpec(location="/hangs", answer_s=0.2)
    released.set()


def states(store: Store) -> list[tuple[str, str]]:
    return [(tier.location.rpartition("/")[2], tier.state) for tier in store.tiers]


def test_unknown_scheme_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"ftp://bucket/x"):
        open_store([TierSpec(location="ftp://bucket/x")], trust=OFF)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "error"), [("", Corrupt), ('{"format":9}', NewerFormat)], ids=["damaged", "newer"]
)
@pytest.mark.parametrize("mode", ["ro", "rw", "required"])
def test_place_that_cannot_be_read_as_a_store_is_left_out_unless_required(near, far, mode, text, error):
    open_store([near], trust=OFF)
    path = Path(near.location, "FORMAT")
    path.chmod(0o600)
    path.write_text(text)
    open_store([far], trust=OFF)
    specs = [replace(near, mode=mode), far]
    if mode == "required":
        with pytest.raises(error):
            open_store(specs, trust=OFF)
        return
    store = open_store(specs, trust=OFF)
    assert states(store) == [("far", "used"), ("near", "away")]
    assert [near.location in line for line in store.problems] == [True]
    assert store.is_behind == (mode == "rw")
    assert not circuit_of(near.location, {}).is_open


def test_hanging_place_among_others_is_left_out(near, hanging):
    store = open_store([near, hanging], trust=OFF)
    assert states(store) == [("near", "used"), ("hangs", "away")]
    assert ["no answer within 0.2 s" in line for line in store.problems] == [True]
    assert store.is_behind


NAME = "ac/ab/one"


class FakeTime:
    """Ticks that take no time; `slept_s` is how much would have passed, as long as it `passes`."""

    def __init__(self, *, tick_s: float = TICK_S) -> None:
        self.slept_s = 0.0
        self.passes: Callable[[], bool] = lambda: True
        self._tick_s = tick_s

    def ticks(self) -> Ticks:
        return Ticks(clock=lambda: self.slept_s, wait=self._wait)

    def pass_until(self, seconds: float) -> None:
        while self.slept_s < seconds:
            threading.Event().wait(0.001)

    def _wait(self, call: Call[object], timeout_s: float) -> bool:
        if call.wait(0.001):
            return True
        if self.passes():
            self.slept_s += max(timeout_s, self._tick_s)
        return False


class Places:
    """A near place that answers and a far one that may hang, in fake time."""

    def __init__(self, *, tick_s: float = TICK_S) -> None:
        self.fast, self.slow = WaywardBackend(), WaywardBackend()
        self.time = FakeTime(tick_s=tick_s)
        self.near = Tier(name="near", backend=self.fast, ticks=self.time.ticks())
        self.far = Tier(name="far", backend=self.slow, ticks=self.time.ticks())

    def view(self, far: TierMode = "rw") -> TieredBackend:
        self.far.mode = far
        return TieredBackend([self.near, self.far])


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places()
    yield made
    made.slow.thaw()


def put(backend: BlobBackend) -> tuple[str, ...]:
    return backend.put_new([new_file(NAME, b"data")])


def test_hanging_place_among_others_is_left_out_of_a_verb(places):
    places.slow.hangs = True
    view = places.view()
    assert put(view) == (NAME,)
    assert places.fast.stat([NAME])
    assert [tier.state.state for tier in view.tiers] == ["used", "away"]
    assert view.problems == [str(places.far.away())]


def test_place_that_is_left_alone_is_asked_no_more(places):
    places.slow.hangs = True
    put(places.view())
    asked = len(places.slow.calls)
    places.time.passes = lambda: False  # a wait would last for ever
    view = places.view()
    view.stat([NAME])
    assert len(places.slow.calls) == asked
    assert len(view.problems) == 1


def test_required_place_that_hangs_is_an_error_that_says_so(places):
    places.slow.hangs = True
    with pytest.raises(StoreUnavailable, match="required store far") as caught:
        put(places.view("required"))
    assert caught.value.required


def test_place_that_hangs_in_the_middle_of_a_file_is_left_alone(places):
    view = places.view()
    put(view)
    places.slow.hangs_while_read = True
    assert read_from_any(view, NAME, lambda file: file.read()) == b"data"
    assert [tier.state.state for tier in view.tiers] == ["used", "away"]


def test_fault_of_transport_leaves_the_place_out_at_once(places):
    places.slow.failure = unavailable("connection refused", transport=True)
    places.time.passes = lambda: False  # a wait would last for ever
    assert put(places.view()) == (NAME,)
    assert places.far.circuit.reason == "connection refused"


def test_long_call_of_a_living_place_is_not_left_behind(places):
    places.slow.on_put = lambda _: places.time.pass_until(100)
    places.time.passes = lambda: places.slow.calls[-1] != "open"  # not while a ping is on its way
    assert put(places.far) == (NAME,)
    assert places.far.state.state == "used"


def test_slow_ping_of_a_starved_process_opens_no_circuit():
    """Each tick takes ten seconds: in all this process ran for less than the patience."""
    places = Places(tick_s=10.0)

    def wait_for_time(_: object) -> None:
        places.slow.hangs = True  # for the ping
        places.time.pass_until(300)
        places.slow.thaw()

    places.slow.on_put = wait_for_time
    places.time.passes = lambda: places.time.slept_s < 300
    assert put(places.far) == (NAME,)
    assert places.far.state.state == "used"


def test_interrupt_of_the_caller_is_not_held_back(places):
    begun, release = threading.Event(), threading.Event()

    def interrupted(call: Call[object], timeout_s: float) -> bool:
        begun.wait(60)
        raise KeyboardInterrupt

    def hang(_: object) -> None:
        begun.set()
        release.wait(60)

    places.slow.on_put = hang
    places.far.ticks = Ticks(wait=interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(places.far)
    release.set()
