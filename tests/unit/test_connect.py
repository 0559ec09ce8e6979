"""Stores that are opened, and places that do not answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.backends import WaywardBackend, new_file, unavailable
from tests.support.stored import OFF
from warmrank.cache_store import connect
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.deadline import TICK_S, Answer, Deadline, Ticks
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode
from warmrank.cache_store.connect import TierSpec, is_left_alone, open_store
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreUnavailable
from warmrank.cache_store.store import Store

pytestmark = pytest.mark.usefixtures("fresh_process")

OPEN_BACKEND = connect.open_backend


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
    assert len(waits) == 2  # 0.2 s are two ticks


NAME = "ac/ab/one"


class FakeTime:
    """Ticks that take no time; `slept_s` is how much would have passed, as long as it `passes`.

    How many ticks a thread takes depends on the machine, so a test that counts them says when time stops.
    """

    def __init__(self, *, tick_s: float = TICK_S) -> None:
        self.slept_s = 0.0
        self.passes: Callable[[], bool] = lambda: True
        self._tick_s = tick_s

    def ticks(self) -> Ticks:
        return Ticks(clock=lambda: self.slept_s, wait=self._wait)

    def pass_until(self, seconds: float) -> None:
        while self.slept_s < seconds:
            threading.Event().wait(0.001)

    def _wait(self, event: threading.Event, timeout_s: float) -> bool:
        if event.wait(0.001):
            return True
        if self.passes():
            self.slept_s += max(timeout_s, self._tick_s)
        return False


def ping_now(tier: Tier, answer: Answer) -> None:
    """Answer at once, unless the backend hangs."""
    assert isinstance(tier.backend, WaywardBackend)
    if not tier.backend.hangs:
        answer("")


@pytest.fixture
def fast() -> WaywardBackend:
    return WaywardBackend()


@pytest.fixture
def slow() -> Iterator[WaywardBackend]:
    backend = WaywardBackend()
    yield backend
    backend.thaw()


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def deadline_of(fast: WaywardBackend, slow: WaywardBackend, time: FakeTime) -> Callable[..., Deadline]:
    def make(*, far_mode: TierMode = "rw", only_far: bool = False) -> Deadline:
        tiers = [Tier(name="far", backend=slow, mode=far_mode)]
        if not only_far:
            tiers.insert(0, Tier(name="near", backend=fast))
        return Deadline(tiers, ticks=time.ticks(), ping=ping_now)

    return make


def put(view: TieredBackend) -> tuple[str, ...]:
    return view.put_new([new_file(NAME, b"data")])


def test_hanging_place_among_others_is_left_out_of_a_verb(deadline_of, fast, slow):
    slow.hangs = True
    deadline = deadline_of()
    assert deadline.run(put) == (NAME,)
    assert fast.stat([NAME])
    assert [tier.state.state for tier in deadline.tiers] == ["used", "away"]
    assert deadline.problems == [str(deadline.tiers[1].away())]


def test_place_that_is_left_alone_is_asked_no_more(deadline_of, slow, time):
    slow.hangs = True
    deadline = deadline_of()
    deadline.run(put)
    asked = len(slow.calls)
    time.passes = lambda: False  # a wait would last for ever
    deadline.run(lambda view: view.stat([NAME]))
    assert len(slow.calls) == asked
    assert len(deadline.problems) == 1


def test_verb_left_behind_is_refused_its_next_call(deadline_of, fast, slow):
    slow.hangs = True
    refusals: queue.SimpleQueue[str] = queue.SimpleQueue()

    def verb(view: TieredBackend) -> tuple[str, ...]:
        try:
            return put(view)
        except StoreUnavailable as error:
            refusals.put(str(error))
            raise

    deadline_of().run(verb)
    slow.thaw()
    assert "given up" in refusals.get(timeout=60)
    assert slow.stat([NAME]).keys() == {NAME}


def test_fault_of_transport_leaves_the_place_out_at_once(deadline_of, slow, time):
    slow.failure = unavailable("connection refused", transport=True)
    deadline = deadline_of()
    time.passes = lambda: False  # a wait would last for ever
    assert deadline.run(put) == (NAME,)
    assert deadline.tiers[1].circuit.reason == "connection refused"


def test_long_verb_on_a_living_place_is_not_left_behind(deadline_of, time):
    deadline = deadline_of()

    def verb(view: TieredBackend) -> str:
        time.pass_until(100)
        return "done"

    assert deadline.run(verb) == "done"
    assert [tier.circuit.is_open for tier in deadline.tiers] == [False, False]


def test_slow_ping_of_a_starved_process_opens_no_circuit(fast, slow):
    """Each tick takes ten seconds: in all this process ran for less than the patience."""
    time = FakeTime(tick_s=10.0)
    pending: list[Answer] = []

    def ping_slowly(tier: Tier, answer: Answer) -> None:
        pending.append(answer)

    deadline = Deadline([Tier(name="far", backend=slow)], ticks=time.ticks(), ping=ping_slowly)

    def verb(view: TieredBackend) -> str:
        time.pass_until(300)
        pending[0]("")
        time.passes = lambda: time.slept_s < 400
        time.pass_until(400)
        return "done"

    time.passes = lambda: time.slept_s < 300

    assert deadline.run(verb) == "done"
    assert not slow.hangs
    assert not deadline.tiers[0].circuit.is_open


def test_interrupt_of_the_caller_is_not_held_back(fast):
    views: list[TieredBackend] = []
    begun = threading.Event()
    release = threading.Event()

    def interrupted(event: threading.Event, timeout_s: float) -> bool:
        begun.wait(60)
        raise KeyboardInterrupt

    def verb(view: TieredBackend) -> None:
        views.append(view)
        begun.set()
        release.wait(60)

    deadline = Deadline([Tier(name="near", backend=fast)], ticks=Ticks(wait=interrupted), ping=ping_now)
    with pytest.raises(KeyboardInterrupt):
        deadline.run(verb)
    release.set()
    with pytest.raises(StoreUnavailable, match="given up"):
        views[0].stat([NAME])
