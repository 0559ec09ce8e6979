"""The deadline at the backend edge: a place that falls silent costs seconds, not the launch.

A verb runs in a daemon thread. A place that gives no sign of life for its ``answer_s`` is left alone, the
thread is left behind, and the verb is done again without that place. Left behind it is harmless: its view
refuses every further call, so to the store it is a process that was killed there. Time in which this process
itself did not run is no silence.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from warmrank.cache_store.backends.places import Tier, TieredBackend
from warmrank.cache_store.errors import StoreError, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE

T = TypeVar("T")
PING_INTERVAL_S = 1.0
TICK_S = 0.1
_ABSENT = f"{FORMAT_FILE}.ping"  # never there
Answer = Callable[[str], None]
Ping = Callable[[Tier, Answer], None]


class Ticks:
    """Waits for an event in short ticks, and says how long this process ran meanwhile.

    What a tick took beyond its length, this process was not given: a compile held its interpreter, or its
    machine was overloaded. An answer may then wait unseen, so that time is no silence.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._clock = clock
        self._wait = wait

    def until(self, event: threading.Event) -> Iterator[float]:
        """The seconds that this process ran in each tick that ended before ``event`` was set."""
        before = self._clock()
        while not self._wait(event, TICK_S):
            now = self._clock()
            seconds, before = min(now - before, TICK_S), now
            yield seconds


class Call(Generic[T]):
    """A call in a daemon thread, which may never return."""

    def __init__(self, function: Callable[[], T], *, name: str) -> None:
        self.ended = threading.Event()
        self._function = function
        self._values: list[T] = []
        self._errors: list[BaseException] = []
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def error(self) -> BaseException | None:
        """The error that the ended call raised."""
        return self._errors[0] if self._errors else None

    def result(self) -> T:
        """Return what the ended call returned, or raise what it raised; once."""
        if self._errors:
            raise self._errors.pop()  # taken out: its traceback refers to this frame
        return self._values.pop()

    def _run(self) -> None:
        try:
            self._values.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._errors.append(error)
        finally:
            self.ended.set()


def wait_for(ended: threading.Event, limit_s: float, *, spent_s: float, ticks: Ticks) -> float:
    """Wait for an event until ``limit_s`` have been spent, ``spent_s`` before; returns the seconds spent."""
    for seconds in ticks.until(ended) if spent_s < limit_s else ():
        spent_s += seconds
        if spent_s >= limit_s:
            break
    return spent_s


def all_within(
    functions: Sequence[Callable[[], T]], *, timeout_s: float, ticks: Ticks | None = None
) -> tuple[T | None, ...]:
    """Results of functions that may hang, such as looks at a network disk; raises what one of them raised.

    They run side by side. None stands for one that is silent, and left in its thread. Only time in which this
    process ran counts.
    """
    ticks, spent_s = ticks or Ticks(), 0.0
    calls = [Call(function, name="store-look") for function in functions]
    for call in calls:
        spent_s = wait_for(call.ended, timeout_s, spent_s=spent_s, ticks=ticks)
    return tuple(call.result() if call.ended.is_set() else None for call in calls)


class Deadline:
    """Runs verbs on the places of one store, nearest first; used by one thread at a time.

    ``ping`` asks a place for a sign of life without waiting for it; ``problems`` has what failed although
    verbs went on, one line each, each once.
    """

    def __init__(
        self, tiers: Sequence[Tier], *, ticks: Ticks | None = None, ping: Ping | None = None
    ) -> None:
        self.tiers = tuple(tiers)
        self.problems: list[str] = []
        self._ticks = ticks or Ticks()
        self._ping = ping or _ping_in_thread

    def run(self, verb: Callable[[TieredBackend], T]) -> T:
        """Do ``verb`` on a view of the places that answer; return or raise as it does.

        Raises `StoreUnavailable`: a required place, or every place, is left alone.
        """
        while True:
            view = TieredBackend(self._asked())
            call = Call(functools.partial(verb, view), name="store-verb")
            try:
                is_answered = self._wait(call.ended, view)
            except BaseException:
                view.leave()
                raise
            # One that failed while a place was found to be away may succeed without it.
            is_lost = view.lost_a_place and isinstance(call.error, StoreUnavailable)
            if is_answered and not is_lost:
                self._note(*view.problems, *self._silence())
                return call.result()
            view.leave()

    def _asked(self) -> list[Tier]:
        """The places that are still asked; what is left alone is a problem, said once."""
        silent = [tier for tier in self.tiers if tier.circuit.is_open]
        for tier in silent:
            if tier.mode == "required":
                raise tier.away()
        if len(silent) == len(self.tiers):
            raise silent[-1].away()
        self._note(*self._silence())
        return [tier for tier in self.tiers if tier not in silent]

    def _wait(self, ended: threading.Event, view: TieredBackend) -> bool:
        """Wait for a verb; False when a place fell silent before it ended."""
        silences = [_Silence(tier) for tier in view.tiers]
        for seconds in self._ticks.until(ended):
            for silence in silences:
                silence.grow(seconds, view.num_answers[silence.tier.name], self._ping)
            if view.lost_a_place:
                return False
        return True

    def _silence(self) -> list[str]:
        return [str(tier.away()) for tier in self.tiers if tier.circuit.is_open]

    def _note(self, *lines: str) -> None:
        self.problems.extend(line for line in dict.fromkeys(lines) if line not in self.problems)


def in_each(
    tiers: Sequence[Tier], verb: Callable[[Tier, TieredBackend], T]
) -> tuple[list[T], list[tuple[Tier, StoreError]]]:
    """Do ``verb`` in each place by itself, the farthest first, and return results, and places that failed.

    One that falls silent takes nothing from what the others report; the error of an only place is raised.
    """
    done: list[T] = []
    errors: list[tuple[Tier, StoreError]] = []
    for tier in reversed(tiers):
        try:
            done.append(Deadline([tier]).run(functools.partial(verb, tier)))
        except StoreError as error:
            if len(tiers) == 1:
                raise
            errors.append((tier, error))
    return done, errors


class _Silence:
    """Time for which a place has been silent, and its pings."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self._seconds = 0.0
        self._num_answers = 0
        self._is_asked = False
        self._answers: list[str] = []

    def grow(self, seconds: float, num_answers: int, ping: Ping) -> None:
        """Let time pass, with all that the place has answered by now; leave it alone if that was too long."""
        fault = ""
        if num_answers != self._num_answers:  # whatever it was asked, that is a sign of life
            self._num_answers, self._seconds = num_answers, 0.0
        if self._answers:
            fault, self._is_asked, self._seconds = self._answers.pop(), False, 0.0
        self._seconds += seconds
        if self._seconds >= PING_INTERVAL_S + self.tier.answer_s:
            fault = fault or f"no answer within {self.tier.answer_s:g} s"
        if fault:
            self.tier.circuit.open(fault, where=self.tier.name)
        elif self._seconds >= PING_INTERVAL_S and not self._is_asked:
            self._is_asked = True
            ping(self.tier, self._answers.append)


def _ping_in_thread(tier: Tier, answer: Answer) -> None:
    threading.Thread(target=ping, args=(tier, answer), name="store-ping", daemon=True).start()


def ping(tier: Tier, answer: Answer) -> None:
    """Read the place's FORMAT, and remove a file that is never there if the place is written.

    The removal changes nothing, but waits where reading does not: at a file system that is frozen, or whose
    bytes are all in this node's memory. Any answer is a sign of life, a refusal too; ``answer`` gets an empty
    text then, or the fault of transport.
    """
    fault = ""
    try:
        with tier.backend.open(FORMAT_FILE) as file, contextlib.suppress(OSError):
            file.read()
        if tier.is_writable:
            tier.backend.move(_ABSENT, None)
    except StoreUnavailable as error:
        fault = error.reason if error.transport else ""
    except StoreError:
        fault = ""
    finally:
        answer(fault)
