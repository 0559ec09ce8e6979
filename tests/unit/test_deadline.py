from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from tests.support.backends import WaywardBackend, new_file, unavailable
from warmrank.cache_store.backends.deadline import TICK_S, Answer, Deadline, Ticks, ping
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode
from warmrank.cache_store.errors import NotInStore, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE

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
def near() -> WaywardBackend:
    return WaywardBackend()


@pytest.fixture
def far() -> Iterator[WaywardBackend]:
    backend = WaywardBackend()
    yield backend
    backend.thaw()


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def deadline_of(near: WaywardBackend, far: WaywardBackend, time: FakeTime) -> Callable[..., Deadline]:
    def make(*, far_mode: TierMode = "rw", only_far: bool = False) -> Deadline:
        tiers = [Tier(name="far", backend=far, mode=far_mode)]
        if not only_far:
            tiers.insert(0, Tier(name="near", backend=near))
        return Deadline(tiers, ticks=time.ticks(), ping=ping_now)

    return make


def put(view: TieredBackend) -> tuple[str, ...]:
    return view.put_new([new_file(NAME, b"data")])


def test_error_of_a_verb_comes_out_as_it_is_with_its_traceback(deadline_of):
    def fail(view: TieredBackend) -> None:
        with view.open(NAME):
            pytest.fail("there is no such file")

    with pytest.raises(NotInStore) as caught:
        deadline_of().run(fail)
    assert "fail" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_hanging_place_among_others_is_left_out(deadline_of, near, far):
    far.hangs = True
    deadline = deadline_of()
    assert deadline.run(put) == (NAME,)
    assert near.stat([NAME])
    assert [tier.state.state for tier in deadline.tiers] == ["used", "away"]
    assert deadline.problems == [
        str(deadline.tiers[1].away()),
    ]


def test_place_that_is_left_alone_is_asked_no_more(deadline_of, far, time):
    far.hangs = True
    deadline = deadline_of()
    deadline.run(put)
    asked = len(far.calls)
    time.passes = lambda: False  # a wait would last for ever
    deadline.run(lambda view: view.stat([NAME]))
    assert len(far.calls) == asked
    assert len(deadline.problems) == 1


def test_only_place_that_hangs_is_an_error(deadline_of, far):
    far.hangs = True
    with pytest.raises(StoreUnavailable, match=r"no answer within 3\.5 s") as caught:
        deadline_of(only_far=True).run(put)
    assert not caught.value.required


def test_verb_left_behind_is_refused_its_next_call(deadline_of, near, far):
    far.hangs = True
    refusals: queue.SimpleQueue[str] = queue.SimpleQueue()

    def verb(view: TieredBackend) -> tuple[str, ...]:
        try:
            return put(view)
        except StoreUnavailable as error:
            refusals.put(str(error))
            raise

    deadline_of().run(verb)
    far.thaw()
    assert "given up" in refusals.get(timeout=60)
    assert far.stat([NAME]).keys() == {NAME}


def test_fault_of_transport_leaves_the_place_out_at_once(deadline_of, far, time):
    far.failure = unavailable("connection refused", transport=True)
    deadline = deadline_of()
    time.passes = lambda: False  # a wait would last for ever
    assert deadline.run(put) == (NAME,)
    assert deadline.tiers[1].circuit.reason == "connection refused"


@pytest.mark.parametrize("reason", ["No space left on device", "Read-only file system", "Permission denied"])
def test_answer_that_refuses_opens_no_circuit(deadline_of, far, reason):
    far.failure = unavailable(reason)
    deadline = deadline_of()
    deadline.run(put)
    assert not deadline.tiers[1].circuit.is_open
    assert [reason in problem for problem in deadline.problems] == [True]


def test_long_verb_on_a_living_place_is_not_left_behind(deadline_of, time):
    deadline = deadline_of()

    def verb(view: TieredBackend) -> str:
        time.pass_until(100)
        return "done"

    assert deadline.run(verb) == "done"
    assert [tier.circuit.is_open for tier in deadline.tiers] == [False, False]


def test_slow_ping_of_a_starved_process_opens_no_circuit(near, far):
    """Each tick takes ten seconds: in all this process ran for less than the patience."""
    time = FakeTime(tick_s=10.0)
    pending: list[Answer] = []

    def ping_slowly(tier: Tier, answer: Answer) -> None:
        pending.append(answer)

    deadline = Deadline([Tier(name="far", backend=far)], ticks=time.ticks(), ping=ping_slowly)

    def verb(view: TieredBackend) -> str:
        time.pass_until(300)
        pending[0]("")
        time.passes = lambda: time.slept_s < 400
        time.pass_until(400)
        return "done"

    time.passes = lambda: time.slept_s < 300

    assert deadline.run(verb) == "done"
    assert not far.hangs
    assert not deadline.tiers[0].circuit.is_open


def test_interrupt_of_the_caller_is_not_held_back(near):
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

    deadline = Deadline([Tier(name="near", backend=near)], ticks=Ticks(wait=interrupted), ping=ping_now)
    with pytest.raises(KeyboardInterrupt):
        deadline.run(verb)
    release.set()
    with pytest.raises(StoreUnavailable, match="given up"):
        views[0].stat([NAME])


def test_ping_reads_the_format_and_tries_a_removal(near):
    answers: list[str] = []
    ping(Tier(name="near", backend=near), answers.append)
    assert (near.calls, answers) == (["open", "move"], [""])
    assert [info.name for info in near.list("")] == [FORMAT_FILE]


def test_real_silence_is_found_out(near, far):
    """The real clock and the real pings, with little patience."""
    far.hangs = True
    tiers = [Tier(name="near", backend=near), Tier(name="far", backend=far, answer_s=0.2)]
    assert Deadline(tiers).run(put) == (NAME,)
    assert near.stat([NAME])


def test_ticks_count_what_passed_while_the_process_ran():
    now = iter([0.0, 0.1, 0.2, 10.2, 10.3])
    waits = iter([False, False, False, False, True])
    ticks = Ticks(clock=lambda: next(now), wait=lambda event, timeout_s: next(waits))
    assert list(ticks.until(threading.Event())) == pytest.approx([TICK_S] * 4)
