"""The deadline at the backend edge: a place that falls silent costs seconds, not the launch.

Each call of a place runs in a daemon thread. A place that gives no sign of life for its ``answer_s`` is left
alone for the rest of the process, and the thread is left behind: the place is then as one that was killed
there. Time in which this process itself did not run is no silence.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, cast

from warmrank.cache_store.backends.backend import (
    BlobBackend,
    FileInfo,
    GuardedFile,
    NewFile,
    new_document,
)
from warmrank.cache_store.errors import StoreError, StoreUnavailable, os_errors_are_unavailable
from warmrank.cache_store.layout import FORMAT_FILE, quarantine_name
from warmrank.cache_store.parallel import elsewhere

logger = logging.getLogger(__name__)
T = TypeVar("T")
TierMode = Literal["ro", "rw", "required"]
ANSWER_S = 3.5  # and a second until a sign of life is asked for: 5 s in all, with the ticks
PING_INTERVAL_S = 1.0
TICK_S = 0.1
_ABSENT = f"{FORMAT_FILE}.ping"  # never there
_idle: list[queue.SimpleQueue[Call[object]]] = []  # of threads that wait for a call
os.register_at_fork(after_in_child=_idle.clear)  # they do not come along


class Call(Generic[T]):
    """A call in a daemon thread, which may never return."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.has_ended = False
        self.waited_s = 0.0  # of its time, for a disk or another machine
        self._function = function
        self._running = threading.Lock()
        self._running.acquire()
        self._values: list[T] = []
        self._errors: list[BaseException] = []
        try:
            calls = _idle.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            threading.Thread(target=_work, args=(calls,), name="store-call", daemon=True).start()
        calls.put(cast("Call[object]", self))

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False if it is still running. For one thread at a time."""
        self.has_ended = self.has_ended or self._running.acquire(timeout=seconds)
        return self.has_ended

    def result(self) -> T:
        """Return what the ended call returned, or raise what it raised; once."""
        if self._errors:
            raise self._errors.pop()  # taken out: its traceback refers to this frame
        return self._values.pop()

    def run(self, then: Callable[[], None]) -> None:
        """Do it, in its thread, and ``then`` tell whoever waits."""
        began_s, worked_s = time.perf_counter(), time.thread_time()
        try:
            self._values.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._errors.append(error)
        self.waited_s = time.perf_counter() - began_s - (time.thread_time() - worked_s)
        then()
        self._running.release()


def _work(calls: queue.SimpleQueue[Call[object]]) -> None:
    while True:
        calls.get().run(lambda: _idle.append(calls))


class Ticks:
    """Waits for a call in short ticks, and says how long this process ran meanwhile.

    What a tick took beyond its length, this process was not given: a compile held its interpreter, or its
    machine was overloaded. An answer may then wait unseen, so that time is no silence.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[Call[object], float], bool] = Call.wait,
    ) -> None:
        self._clock, self._wait = clock, wait

    def until(self, call: Call[T]) -> Iterator[float]:
        """The seconds that this process ran in each tick that passed before the call ended."""
        before = self._clock()
        while not self._wait(cast("Call[object]", call), TICK_S):
            now = self._clock()
            seconds, before = min(now - before, TICK_S), now
            yield seconds


def all_within(
    functions: Sequence[Callable[[], T]], *, timeout_s: float, ticks: Ticks | None = None
) -> tuple[T | None, ...]:
    """Results of functions that may hang, such as looks at a network disk; raises what one of them raised.

    They run side by side. None stands for one that is silent, and left in its thread.
    """
    calls = [Call(function) for function in functions]
    wait_for([(call, timeout_s) for call in calls], ticks=ticks)
    return tuple(call.result() if call.has_ended else None for call in calls)


def wait_for(calls: Iterable[tuple[Call[T], float]], *, ticks: Ticks | None = None) -> None:
    """Wait until each call ended, or its seconds are over; only time in which this process ran counts."""
    ticks, spent_s = ticks or Ticks(), 0.0
    for call, limit_s in calls:
        for seconds in ticks.until(call) if spent_s < limit_s else ():
            spent_s += seconds
            if spent_s >= limit_s:
                break


class Circuit:
    """State of a place in this process: asked until it has a ``reason``. Threads may share one."""

    reason = ""

    @property
    def is_open(self) -> bool:
        """True once the place is left alone."""
        return bool(self.reason)

    def open(self, reason: str, *, where: str) -> None:
        """Leave the place alone from now on; the first reason stays."""
        if not self.reason:
            self.reason = reason
            logger.warning("%s is left alone for the rest of this process: %s", where, reason)


# One for each place, whatever the number of stores opened in this process: none waits for a dead one again.
_circuits: dict[tuple[str, frozenset[tuple[str, str]]], Circuit] = {}


def circuit_of(location: str, options: Mapping[str, str]) -> Circuit:
    """The circuit of a place, as the whole process shares it."""
    return _circuits.setdefault((location, frozenset(options.items())), Circuit())


def away(name: str, reason: str, *, required: bool) -> StoreUnavailable:
    """The error for a place that is left alone for the rest of this process."""
    return StoreUnavailable(
        what=f"required store {name}" if required else f"store {name}",
        where=name,
        reason=f"{reason}, so it is left alone for the rest of this process",
        remedy="check that its file system or server answers, then start again",
        required=required,
        transport=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """State of one place, for reports; ``away`` is left alone, ``off`` was not asked for."""

    location: str  # as it was named
    mode: str
    state: Literal["used", "away", "off"]
    reason: str = ""  # why it is left alone


@dataclass(kw_only=True, eq=False)
class Tier:
    """One place of a store: its backend, each call within the deadline.

    One that is ``ro`` is never written; without a ``required`` one no verb goes on. The farthest one of those
    that are configured holds launches whole.
    """

    name: str  # its location, as it was named
    backend: BlobBackend
    mode: TierMode = "rw"
    is_farthest: bool = True
    answer_s: float = ANSWER_S  # how long it may be silent
    circuit: Circuit = field(default_factory=Circuit)
    ticks: Ticks = field(default_factory=Ticks)
    refusal: str = ""  # why another place alone took what was last written for this one
    _num_answers: int = 0
    _is_pinged: bool = False

    @property
    def is_writable(self) -> bool:
        """True if files may be put here."""
        return self.mode != "ro"

    @property
    def state(self) -> TierState:
        """Its state so far."""
        reason = self.circuit.reason
        return TierState(
            location=self.name, mode=self.mode, state="away" if reason else "used", reason=reason
        )

    def away(self) -> StoreUnavailable:
        """The error that says that this place is left alone, and why."""
        return away(self.name, self.circuit.reason, required=self.mode == "required")

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """See `BlobBackend.put_new`."""
        return self.call(lambda: self.backend.put_new(files))

    def read(self, name: str, use: Callable[[GuardedFile], T]) -> T:
        """Return the result of ``use`` for a file, in the thread of the call; each read is a sign of life.

        ``use`` may be left behind in its thread, so its caller clears away what it may have begun.
        """

        def read() -> T:
            with self.backend.open(name) as file:
                return use(GuardedFile(file, os_errors_are_unavailable("file", name), self._answered))

        return self.call(read)

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`."""
        return self.call(lambda: self.backend.stat(names))

    def list(self, prefix: str) -> list[FileInfo]:
        """See `BlobBackend.list`."""
        return self.call(lambda: list(self.backend.list(prefix)))

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`."""
        return self.call(lambda: self.backend.move(name, target))

    def quarantine(self, name: str, reason: str) -> None:
        """Move a file out of the way, with the reason beside it, so that it can be put again.

        A name that is gone already is no error; one that cannot be moved is `StoreUnavailable`.
        """
        target = quarantine_name(name, uuid.uuid4().hex)
        if self.is_writable and self.move(name, target):
            logger.warning("Quarantined %s as %s: %s", name, target, reason)
            self.put_new([new_document(f"{target}.reason", f"{reason}\n".encode("utf-8", "replace"))])

    def call(self, function: Callable[[], T]) -> T:
        """Call the place in a thread; raises what it raises.

        Raises `StoreUnavailable` where the place is left alone already, has fallen silent, or cannot be
        reached.
        """
        if self.circuit.is_open:
            raise self.away()
        began_s, call = time.perf_counter(), Call(function)
        silent_s, num_answers = 0.0, self._num_answers
        for seconds in self.ticks.until(call):
            if self._num_answers != num_answers:  # whatever it was asked, that is a sign of life
                num_answers, silent_s = self._num_answers, 0.0
            silent_s += seconds
            if silent_s >= PING_INTERVAL_S + self.answer_s:
                self.circuit.open(f"no answer within {self.answer_s:g} s", where=self.name)
            elif silent_s >= PING_INTERVAL_S and not self._is_pinged:
                self._is_pinged = True
                Call(self.ping)
            if self.circuit.is_open:
                raise self.away()
        elsewhere.worked_s += time.perf_counter() - began_s - call.waited_s
        try:
            return call.result()
        except StoreUnavailable as error:
            if not error.transport:
                raise
            self.circuit.open(error.reason, where=self.name)
            raise self.away() from error
        finally:
            self._answered()

    def _answered(self, _: int = 0) -> None:
        self._num_answers += 1

    def ping(self) -> None:
        """Ask for a sign of life; any answer is one, a refusal too.

        Reads FORMAT, and removes a file that is never there if the place is written: that changes nothing,
        but waits where reading does not, at a file system that is frozen, or whose bytes are all in this
        node's memory.
        """
        try:
            with self.backend.open(FORMAT_FILE) as file:
                file.read()
            if self.is_writable:
                self.backend.move(_ABSENT, None)
        except StoreUnavailable as error:
            if error.transport:
                self.circuit.open(error.reason, where=self.name)
        except (StoreError, OSError):
            pass
        finally:
            self._answered()
            self._is_pinged = False
