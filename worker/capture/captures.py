"""The captured graphs of one runner: made from a shape's second call on, and replayed."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.capture.entry import Entry, inside
from warmrank.worker.capture.pools import CapturePool, pool_of
from warmrank.worker.devices import duplicate, memory_of
from warmrank.worker.errors import NotCapturable
from warmrank.worker.runtime.runner import ordinary_tensors

if TYPE_CHECKING:
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.capture.statistics import PoolStatistics
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.engines.port import Graph
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.runtime.runner import CaptureOptions, InputLayout, Settled, Tally

_log = logging.getLogger("torchair")


class Captures:
    """The captured graphs of one runner, by `InputLayout.key`; its lock is held in every call.

    Attributes:
        entries: the captured graphs.
    """

    def __init__(
        self,
        graph: Graph,
        facts: GraphFacts,
        layout: InputLayout,
        backend: DeviceBackend,
        options: CaptureOptions,
        tally: Tally,
    ) -> None:
        self.entries: dict[tuple[Any, ...], Entry] = {}
        self._graph = graph
        self._aliased = frozenset(facts.aliased_outputs)
        self._layout = layout
        self._backend = backend
        self._options = options
        self._given = None if options.pool is None else pool_of(backend, options.pool)
        self._pools: dict[Any, CapturePool] = {}
        self._tally = tally
        self._last: Entry | None = None
        self._thread = 0
        self._threads: set[int] = set()
        self._warned: set[str] = set()

    def may_add(self, key: tuple[Any, ...]) -> bool:
        """Whether a graph may be captured for this key, and none is."""
        return not (key in self.entries or self._tally.never or self._is_full())

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that are captured, for the capture plan."""
        return tuple(entry.shapes for entry in self.entries.values() if entry.shapes is not None)

    def pool_statistics(self) -> tuple[PoolStatistics, ...]:
        """Of each pool that graphs were captured into."""
        return tuple(pool.statistics() for pool in self._pools.values())

    def prepare(self, key: tuple[Any, ...], inputs: tuple[Any, ...], settled: Settled) -> None:
        """See `GraphRunner.prepare`."""
        entry = self.entries.get(key)
        if entry is None or not entry.fits(inputs, settled):
            entry, intact = self._capture(key, inputs)
            if entry is None:
                with restored(intact, self._layout.mutated):
                    self._graph(*intact)

    def replay_last(self, inputs: tuple[Any, ...], settled: Settled) -> tuple[Any, ...] | None:
        """Outputs of the graph that was replayed last; None where it does not fit these inputs."""
        entry = self._last
        if entry is None or not entry.fits(inputs, settled):
            return None
        entry.fill(inputs)
        return self._replay(entry, inputs)

    def run(self, key: tuple[Any, ...], inputs: tuple[Any, ...], settled: Settled) -> tuple[Any, ...]:
        """Outputs of a captured graph; of the graph as it is where nothing can be captured."""
        entry = self.entries.get(key)
        if entry is not None and not self._options.force_recapture and entry.fits(inputs, settled):
            entry.fill(inputs)
        else:
            entry, inputs = self._capture(key, inputs)
        if entry is None:
            self._tally.eager[self._tally.never or "static_capture_size_limit is reached"] += 1
            return self._graph(*inputs)
        if not self._options.force_recapture:
            self._last = entry
        return self._replay(entry, inputs)

    def _replay(self, entry: Entry, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if (thread := threading.get_ident()) != self._thread:
            self._note_thread(thread)
        entry.captured.replay()
        self._tally.replays += 1
        self._layout.note_writes(inputs)
        return entry.hand_out(inputs)

    def _capture(self, key: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Entry | None, tuple[Any, ...]]:
        """Capture for these inputs, which lie in the buffers then; None, and the inputs, if it cannot be."""
        if self._tally.never or (key not in self.entries and self._is_full()):
            return None, inputs
        self._forget(key, inputs)
        intact = inputs
        with ordinary_tensors(inputs[index] for index in self._layout.mutated):
            try:
                # A user input inside a mutated input's memory must see its writes, so it is not copied.
                copied = frozenset(self._layout.copied) - inside(inputs, self._layout)
                # Those that are may lie in the pool, where the graph writes while it is recorded.
                intact = tuple(
                    duplicate(value) if index in copied else value for index, value in enumerate(inputs)
                )
                entry = self._captured(key, inputs, intact, copied)
            except NotCapturable as error:
                self._tally.never = f"it cannot be captured: {error.message}"
                _log.warning("a graph runs without capture from now on; %s", self._tally.never)
                return None, intact
        self._tally.captures += 1
        self.entries[key] = entry
        self._tally.ran.pop(hash(key), None)
        return entry, inputs

    def _forget(self, key: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
        """Drop the graph of this key, if there is one, so that the next one gets its memory."""
        old = self.entries.pop(key, None)
        if old is not None:
            cause = "force_recapture" if old.fits(inputs) else old.misfit(inputs)
            self._tally.recaptured[cause] += 1
            self._tally.ran[hash(key)] = None  # should the capture fail, the next call tries again
            self._last = None
            _log.info("recapture: %s", cause)

    def _captured(
        self,
        key: tuple[Any, ...],
        inputs: tuple[Any, ...],
        intact: tuple[Any, ...],
        copied: frozenset[int],
    ) -> Entry:
        pool = self._pool(key)
        for index in self._layout.kept:
            if pool.returned(inputs[index]):
                self._warn_once(
                    f"{self._layout.described(index)} lies in memory that a captured graph returned: the "
                    "next replay in this pool overwrites it. Clone it first, or set "
                    "debug.aclgraph.enable_output_clone."
                )
        with restored(inputs, self._layout.mutated):
            captured = self._backend.capture(
                self._graph, intact, copied=copied, aliased=self._aliased, pool=pool.pool
            )
        entry = Entry(self._layout, captured, inputs, copied, clone_output=self._options.clone_output)
        pool.add(entry, self._aliased)
        return entry

    def _pool(self, key: tuple[Any, ...]) -> CapturePool:
        """Where a graph is captured into: the given pool (mode one), one for all (mode two), or its own."""
        place = key if self._given is None and self._options.pool_for_each_shape else None
        if place not in self._pools:
            self._pools[place] = self._given or CapturePool(self._backend)
        return self._pools[place]

    def _is_full(self) -> bool:
        full = len(self.entries) >= self._options.limit
        if full:
            self._warn_once(
                f"{self._options.limit} graphs are captured, which is "
                "debug.aclgraph.static_capture_size_limit; further shapes run without capture. "
                "Raise the limit, or use fewer shapes."
            )
        return full

    def _note_thread(self, thread: int) -> None:
        """Warn of threads that call in turns; one that takes over from another is nothing to warn of."""
        if thread in self._threads and not self._options.clone_output:
            self._warn_once(
                "several threads call a captured function, and each call overwrites what the one before "
                "returned, whichever thread holds that; set debug.aclgraph.enable_output_clone"
            )
        self._threads.add(thread)
        self._thread = thread

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)


@contextlib.contextmanager
def restored(inputs: Sequence[Any], mutated: Sequence[int]) -> Iterator[None]:
    """Gives mutated inputs their values back at the end, and generators of random numbers their states.

    An operator of the user's may draw numbers although nothing says so.
    """
    saved = [memory_of(inputs[index]).clone() for index in mutated]
    generators = [(put_back, state()) for state, put_back in _generators()]
    try:
        yield
    finally:
        for put_back, drawn_from in generators:
            put_back(drawn_from)
        for index, before in zip(mutated, saved, strict=True):
            memory_of(inputs[index]).copy_(before)


def _generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How the state of each default generator on the host is read and set."""
    yield torch.get_rng_state, torch.set_rng_state
    yield random.getstate, random.setstate
    if numpy_random := sys.modules.get("numpy.random"):
        yield numpy_random.get_state, numpy_random.set_state
