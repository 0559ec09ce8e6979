"""A place that did not answer is left alone: the state that says so, and the patience before it.

Invariants: a circuit opens once, with its first reason, and stays open for the rest of the process; only
silence and faults of transport open it, never an answer such as "no space left". Time in which this process
itself did not run counts for nothing, because then the place may have answered unseen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 1.0
TICK_S = 0.1
Answer = Callable[[str], None]
Clock = Callable[[], float]
Wait = Callable[[threading.Event, float], bool]


class Ticks:
    """Waits for an event in short ticks, and says how long this process ran meanwhile.

    What a tick took beyond its length, this process was not given: its interpreter was held by a compile, or
    its machine was overloaded. An answer may then wait unseen, so that time is no silence.

    Args:
        clock: seconds that only grow.
        wait: waits for an event for so many seconds at most, and says whether it is set.
    """

    def __init__(self, *, clock: Clock = time.monotonic, wait: Wait = threading.Event.wait) -> None:
        self._clock = clock
        self._wait = wait

    def until(self, event: threading.Event) -> Iterator[float]:
        """The seconds that this process ran in each tick that ended before ``event`` was set."""
        before = self._clock()
        while not self._wait(event, TICK_S):
            now = self._clock()
            seconds, before = min(now - before, TICK_S), now
            yield seconds


class Circuit:
    """Whether a place is still asked. Any number of threads may use one at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why the place is left alone; empty while it is asked."""
        return self._reason

    @property
    def is_open(self) -> bool:
        """Whether the place is left alone."""
        return bool(self._reason)

    def open(self, reason: str, *, where: str) -> None:
        """Leave the place alone from now on; the first reason stays."""
        with self._lock:
            if self._reason:
                return
            self._reason = reason
        logger.warning("%s is left alone for the rest of this process: %s", where, reason)


class Circuits:
    """The circuits of this process, one for each place, whatever the number of stores opened in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._circuits: dict[tuple[str, frozenset[tuple[str, str]]], Circuit] = {}

    def of(self, location: str, options: Mapping[str, str]) -> Circuit:
        """The circuit of a place, which is known by its location and the options that lead to it."""
        with self._lock:
            return self._circuits.setdefault((location, frozenset(options.items())), Circuit())


class Watch:
    """How long a place has been silent, and whether it was asked for a sign of life.

    Args:
        ask: asks the place, in a thread of its own; its argument is called with an empty text when the place
            answered, or with the fault of transport.
        answer_s: how long it may then be silent.
        interval_s: how long it is believed after a sign of life without being asked.
    """

    def __init__(
        self, ask: Callable[[Answer], None], *, answer_s: float, interval_s: float = PING_INTERVAL_S
    ) -> None:
        self._ask = ask
        self._answer_s = answer_s
        self._interval_s = interval_s
        self._silent_s = 0.0
        self._num_answers = 0
        self._asked = False
        self._answers: list[str] = []

    def hear(self, num_answers: int) -> None:
        """Any call that the place has answered since is a sign of life, whatever was asked."""
        if num_answers != self._num_answers:
            self._num_answers = num_answers
            self._silent_s = 0.0

    def pass_time(self, seconds: float) -> str:
        """Let time pass.

        Args:
            seconds: that passed while this process ran.

        Returns:
            Why to leave the place alone; empty while there is hope.
        """
        if self._answers:
            fault = self._answers.pop()
            self._asked = False
            self._silent_s = 0.0
            if fault:
                return fault
        self._silent_s += seconds
        if self._silent_s >= self._interval_s + self._answer_s:
            return f"no answer within {self._answer_s:g} s"
        if self._silent_s >= self._interval_s and not self._asked:
            self._asked = True
            self._ask(self._answers.append)
        return ""
