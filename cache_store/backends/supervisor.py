"""Runs the verbs of a store so that a place that falls silent costs seconds, not the launch.

A verb runs in a daemon thread. From its second second on, each place is asked for a sign of life once a
second; one that is silent for its ``answer_s`` is left alone from then on, the thread is left behind, and the
verb is done again without that place. So a dead place costs at most ``answer_s`` and one second, once.

A verb left behind is harmless. It may hang in one call of its backend for hours; when that call returns, the
next one is refused (`TieredBackend.leave`), so to the store it is a process that was killed there. The one
call that was under way creates files, whole, verified and never overwritten, or moves one; a partition whose
manifest is missing is no partition. A fetch may still place what it has verified into the cache directory,
as any other process may. Its result, its error and its problems are dropped: it writes to nothing that the
caller still reads.

Invariants: errors of a verb come out as they are, with their traceback; an interrupt of the caller is not
held back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from warmrank.cache_store.backends.circuit import Answer, Ticks, Watch
from warmrank.cache_store.backends.tier import Tier
from warmrank.cache_store.backends.tiers import TieredBackend
from warmrank.cache_store.errors import StoreError, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE

T = TypeVar("T")
_ABSENT = f"{FORMAT_FILE}.ping"  # never there
Ping = Callable[[Tier, Answer], None]


class Supervisor:
    """Runs verbs on the places of one store; used by one thread at a time.

    Args:
        tiers: the places, nearest first.
        ticks: how time passes.
        ping: asks a place for a sign of life without waiting for it.

    Attributes:
        problems: what failed although verbs went on, one line each, each once.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        ticks: Ticks | None = None,
        ping: Ping | None = None,
    ) -> None:
        self.tiers = tuple(tiers)
        self.problems: list[str] = []
        self._ticks = ticks or Ticks()
        self._ping = ping or ping_in_thread

    def run(self, operation: Callable[[TieredBackend], T]) -> T:
        """What ``operation`` returns or raises, on a view of the places that answer.

        Raises:
            StoreUnavailable: a required place, or every place, is left alone.
        """
        while True:
            view = TieredBackend(self._asked())
            call = _Call(operation, view)
            try:
                ended = self._see_through(call, view)
            except BaseException:
                view.leave()
                raise
            if ended and not call.lost_a_place:
                self._note(*view.problems, *self._silence())
                return call.result()
            view.leave()

    def _asked(self) -> list[Tier]:
        """The places that are still asked; what is left alone is a problem, said once."""
        silent = [tier for tier in self.tiers if tier.circuit.is_open]
        asked = [tier for tier in self.tiers if tier not in silent]
        for tier in silent:
            if tier.mode == "required":
                raise tier.away()
        if not asked:
            raise silent[-1].away()
        self._note(*self._silence())
        return asked

    def _silence(self) -> list[str]:
        return [str(tier.away()) for tier in self.tiers if tier.circuit.is_open]

    def _see_through(self, call: _Call[T], view: TieredBackend) -> bool:
        """Wait for the verb; False when a place fell silent before it ended."""
        watches = [(tier, self._watch(tier)) for tier in view.tiers]
        call.start()
        for seconds in self._ticks.until(call.ended):
            for tier, watch in watches:
                watch.hear(view.num_answers[tier.name])
                if fault := watch.pass_time(seconds):
                    tier.circuit.open(fault, where=tier.name)
            if view.lost_a_place:
                return False
        return True

    def _watch(self, tier: Tier) -> Watch:
        return Watch(lambda answer: self._ping(tier, answer), answer_s=tier.answer_s)

    def _note(self, *lines: str) -> None:
        self.problems.extend(line for line in dict.fromkeys(lines) if line not in self.problems)


class _Call(Generic[T]):
    """One try of a verb in its thread."""

    def __init__(self, operation: Callable[[TieredBackend], T], view: TieredBackend) -> None:
        self.ended = threading.Event()
        self._operation = operation
        self._view = view
        self._value: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="store-verb", daemon=True).start()

    @property
    def lost_a_place(self) -> bool:
        """Whether it failed and a place was found to be away meanwhile, so that it may succeed without."""
        return isinstance(self._error, StoreUnavailable) and self._view.lost_a_place

    def result(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback leads back here
        return self._value.pop()

    def _run(self) -> None:
        try:
            self._value.append(self._operation(self._view))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = error
        finally:
            self.ended.set()


def ping_in_thread(tier: Tier, answer: Answer) -> None:
    """Ask a place in a daemon thread; see `ping`."""
    threading.Thread(target=ping, args=(tier, answer), name="store-ping", daemon=True).start()


def ping(tier: Tier, answer: Answer) -> None:
    """Read the place's FORMAT, and remove a file that is never there if the place is written.

    The removal changes nothing, but waits where reading does not: at a file system that is frozen, or whose
    bytes are all in this node's memory. Any answer is a sign of life, a refusal too.
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
