"""Runs one loaded graph through captured graphs, and by the seeds' three classes of inputs.

* parameters and buffers, and other state of the module: used where they lie; another address means recapture;
* mutated inputs (a KV cache): likewise;
* user inputs: copied into the graph's own buffers before each replay (``clone_input``).

The first call of a shape runs the graph as it is: a shape that comes only once never pays for a capture, and
the first output of a process need not wait for one. The second call captures it, and from then on it is
replayed; what only that needs is imported then.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.capture.layout import InputLayout, Settled, SettledInputs
from warmrank.worker.devices.memory import memory_of
from warmrank.worker.errors import NotCapturable
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.capture.eager import EagerRunner
    from warmrank.worker.capture.entry import Entry
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.capture.pools import CapturePool
    from warmrank.worker.capture.statistics import CaptureStatistics, PoolStatistics
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.devices import PoolHandle
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.engines import Engine, Graph
    from warmrank.worker.runtime.artifact import GraphFacts

_log = logging.getLogger("torchair")

# Shapes that ran once are remembered up to this many times the limit of captures: a function that goes round
# through more captures none of them, and would have replayed at most one call in as many.
_SHAPES_PER_CAPTURE = 16


class CaptureOptions(Value):
    """How graphs are captured, and what they do with memory.

    Attributes:
        clone_input: memory reuse, mode three: copy user inputs into buffers of the pool; without it a user
            input at a new address means recapture.
        clone_output: return copies, which later replays do not overwrite.
        limit: captured graphs of one function, after which further shapes run without capture.
        eager: never capture.
        pool: memory reuse, mode one: handle of the pool that all functions of the configuration share.
        pool_for_each_shape: memory reuse, mode two, not wanted: else all shapes of one function share a pool.
            Mode one takes its place.
        frozen_parameters: parameters and buffers never move, so their addresses are not compared.
        force_recapture: capture again for every call, for looking into faults.
    """

    clone_input: bool = True
    clone_output: bool = False
    limit: int = 64
    eager: bool = False
    pool: PoolHandle | None = None
    pool_for_each_shape: bool = False
    frozen_parameters: bool = False
    force_recapture: bool = False

    @classmethod
    def of(cls, config: CompilerConfig) -> CaptureOptions:
        """The options of a configuration; those that are at their default there are so here."""
        given = {OPTION_NAMES[name]: value for name, value in config.given().items() if name in OPTION_NAMES}
        return cls(**given, eager=config.runs_eagerly())


OPTION_NAMES = {
    "debug.aclgraph.clone_input": "clone_input",
    "debug.aclgraph.enable_output_clone": "clone_output",
    "debug.aclgraph.static_capture_size_limit": "limit",
    "debug.aclgraph.disable_mempool_reuse_in_same_fx": "pool_for_each_shape",
    "aclgraph_config.use_custom_pool": "pool",
    "experimental_config.frozen_parameter": "frozen_parameters",
    "npugraphex_config.force_recapture": "force_recapture",
}


class Tally:
    """The counters of one runner."""

    def __init__(self) -> None:
        self.captures = self.replays = self.warm_up_runs = 0
        self.recaptured: Counter[str] = Counter()
        self.eager: Counter[str] = Counter()

    def taken(self, pools: tuple[PoolStatistics, ...]) -> CaptureStatistics:
        """The counters as they stand."""
        from warmrank.worker.capture.statistics import CaptureStatistics, counts

        return CaptureStatistics(
            captures=self.captures,
            recapture_causes=counts(self.recaptured),
            replays=self.replays,
            warm_up_runs=self.warm_up_runs,
            eager_causes=counts(self.eager),
            pools=pools,
        )


class GraphRunner:
    """Runs one loaded graph through captured graphs.

    Buffers and outputs are shared by all calls, so calls run one at a time: of all threads, and of all
    functions that share the pool. Outputs of a replay are still overwritten by the next one, as on the
    device; ``enable_output_clone`` gives each call its own, which those of a shape's first call are anyway.
    """

    def __init__(
        self, graph: Graph, facts: GraphFacts, backend: DeviceBackend, options: CaptureOptions
    ) -> None:
        self.layout = InputLayout(
            facts, clone_input=options.clone_input, frozen_parameters=options.frozen_parameters
        )
        self.settled = SettledInputs(self.layout)
        self._graph = graph
        self._backend = backend
        self._options = options
        self._aliased = frozenset(facts.aliased_outputs)
        self._autocast_kinds = autocast_kinds(backend.kind)
        self._given: CapturePool | None = None
        if options.pool is not None:
            from warmrank.worker.capture.pools import pool_of

            self._given = pool_of(backend, options.pool)
        self._lock = self._given.lock if self._given is not None else threading.RLock()
        self._pools: dict[Any, CapturePool] = {}
        self._entries: dict[tuple[Any, ...], Entry] = {}
        # Hashes of shapes that ran once and are not captured yet, the oldest first. Two shapes of one hash
        # are harmless: the second is captured at its first call, which is right as well.
        self._ran: dict[int, None] = {}
        self._last: Entry | None = None
        self._thread = 0
        self._threads: set[int] = set()
        self._warned: set[str] = set()
        self._tally = Tally()
        self._never = "asked for (debug.run_eagerly)" if options.eager else ""
        if facts.data_dependent:
            self._never = f"{facts.data_dependent}'s result depends on data"
            _log.info("not captured: %s", self._never)
        elif facts.random and backend.kind == "cpu":
            # Run operator by operator it draws what the function itself would.
            self._never = f"{facts.random} draws random numbers, for which a CPU graph has no generator"
            _log.info("not captured: %s", self._never)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``; from a shape's second call on out of a captured graph.

        Raises:
            StateChanged: a tensor of the module is not what the graph was loaded for; nothing ran.
        """
        with self._lock:
            if is_plain(self._autocast_kinds):
                return self._run(inputs)
            with plain(self._autocast_kinds):
                return self._run(inputs)

    def prepare(self, *inputs: Any) -> None:
        """Capture for ``inputs`` without lasting effect on mutated inputs; run the graph where it cannot be.

        As a replay would, it overwrites what other graphs of the pool returned.
        """
        with self._lock, plain(self._autocast_kinds):
            self.layout.require_tensors(inputs)
            settled = self.settled.check(inputs)
            key = self.layout.key(inputs)
            entry = self._entries.get(key)
            if entry is None or not entry.fits(inputs, settled):
                entry, intact = self._capture(key, inputs)
                if entry is None:
                    with restored(intact, self.layout.mutated):
                        self._graph(*intact)

    def hand_over(self) -> None:
        """Nothing is made at run time that a later process could use."""

    @property
    def max_captures(self) -> int:
        """How many graphs may be captured."""
        return 0 if self._never else self._options.limit

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that are captured, for the capture plan."""
        with self._lock:
            return tuple(entry.shapes for entry in self._entries.values() if entry.shapes is not None)

    def shapes_for(self, inputs: Sequence[Any]) -> Shapes | None:
        """What the capture plan says of these inputs; None where nothing would be captured for them."""
        if self._never:
            return None
        from warmrank.worker.capture.plan import shapes_of

        return shapes_of(self.layout, inputs)

    @property
    def statistics(self) -> CaptureStatistics:
        """What was done since the function was loaded."""
        with self._lock:
            return self._tally.taken(tuple(pool.statistics() for pool in self._pools.values()))

    def _run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        settled = self.settled.check(inputs)
        entry = self._last
        if entry is not None and entry.fits(inputs, settled):
            entry.fill(inputs)
        else:
            self.layout.require_tensors(inputs)
            key = self.layout.key(inputs)
            if self._is_first(key):
                return self._run_first(key, inputs)
            entry, inputs = self._find(key, inputs, settled)
            if entry is None:
                return self._graph(*inputs)
        if (thread := threading.get_ident()) != self._thread:
            self._note_thread(thread)
        entry.captured.replay()
        self._tally.replays += 1
        self.layout.note_writes(inputs)
        return entry.hand_out(inputs)

    def _is_first(self, key: tuple[Any, ...]) -> bool:
        """Whether a shape that may be captured did not run yet."""
        return not (
            key in self._entries
            or hash(key) in self._ran
            or self._never
            or self._options.force_recapture
            or self._is_full()
        )

    def _run_first(self, key: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run the graph as it is, which is all the warming up that a later capture needs."""
        # Outputs are of the kind that replays return, or one loop would be given both kinds.
        with ordinary_tensors(inputs[index] for index in self.layout.mutated):
            outputs = self._graph(*inputs)
        self._note_run(key)
        self._tally.warm_up_runs += 1
        return outputs

    def _note_run(self, key: tuple[Any, ...]) -> None:
        self._ran[hash(key)] = None
        if len(self._ran) > max(1, self._options.limit * _SHAPES_PER_CAPTURE):
            del self._ran[next(iter(self._ran))]

    def _find(
        self, key: tuple[Any, ...], inputs: tuple[Any, ...], settled: Settled
    ) -> tuple[Entry | None, tuple[Any, ...]]:
        """A captured graph whose buffers hold these inputs; None, and the inputs, to run without one."""
        entry = self._entries.get(key)
        if entry is not None and not self._options.force_recapture and entry.fits(inputs, settled):
            entry.fill(inputs)
        else:
            entry, inputs = self._capture(key, inputs)
        if entry is None:
            self._tally.eager[self._never or "static_capture_size_limit is reached"] += 1
        elif not self._options.force_recapture:
            self._last = entry
        return entry, inputs

    def _capture(self, key: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Entry | None, tuple[Any, ...]]:
        """Capture for these inputs, which lie in the buffers then; None, and the inputs, if it cannot be."""
        if self._never or (key not in self._entries and self._is_full()):
            return None, inputs
        self._forget(key, inputs)
        from warmrank.worker.capture.entry import inside
        from warmrank.worker.devices.memory import duplicate

        intact = inputs
        with ordinary_tensors(inputs[index] for index in self.layout.mutated):
            try:
                # A user input inside a mutated input's memory must see its writes, so it is not copied.
                copied = frozenset(self.layout.copied) - inside(inputs, self.layout)
                # Those that are may lie in the pool, where the graph writes while it is recorded.
                intact = tuple(
                    duplicate(value) if index in copied else value for index, value in enumerate(inputs)
                )
                entry = self._captured(key, inputs, intact, copied)
            except NotCapturable as error:
                self._never = f"it cannot be captured: {error.message}"
                _log.warning("a graph runs without capture from now on; %s", self._never)
                return None, intact
        self._tally.captures += 1
        self._entries[key] = entry
        self._ran.pop(hash(key), None)
        return entry, inputs

    def _forget(self, key: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
        """Drop the graph of this key, if there is one, so that the next one gets its memory."""
        old = self._entries.pop(key, None)
        if old is not None:
            cause = "force_recapture" if old.fits(inputs) else old.misfit(inputs)
            self._tally.recaptured[cause] += 1
            self._note_run(key)  # should the capture fail, the next call tries again
            self._last = None
            _log.info("recapture: %s", cause)

    def _captured(
        self,
        key: tuple[Any, ...],
        inputs: tuple[Any, ...],
        intact: tuple[Any, ...],
        copied: frozenset[int],
    ) -> Entry:
        from warmrank.worker.capture.entry import Entry

        pool = self._pool(key)
        for index in self.layout.kept:
            if pool.returned(inputs[index]):
                self._warn_once(
                    f"{self.layout.described(index)} lies in memory that a captured graph returned: the next "
                    "replay in this pool overwrites it. Clone it first, or set "
                    "debug.aclgraph.enable_output_clone."
                )
        with restored(inputs, self.layout.mutated):
            captured = self._backend.capture(
                self._graph, intact, copied=copied, aliased=self._aliased, pool=pool.pool
            )
        entry = Entry(self.layout, captured, inputs, copied, clone_output=self._options.clone_output)
        pool.add(entry, self._aliased)
        return entry

    def _pool(self, key: tuple[Any, ...]) -> CapturePool:
        """Where a graph is captured into: the given pool (mode one), one for all (mode two), or its own."""
        place = key if self._given is None and self._options.pool_for_each_shape else None
        if place not in self._pools:
            from warmrank.worker.capture.pools import CapturePool

            self._pools[place] = self._given or CapturePool(self._backend)
        return self._pools[place]

    def _is_full(self) -> bool:
        full = len(self._entries) >= self._options.limit
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


def runner_for(
    engine: Engine, graph: Any, facts: GraphFacts, backend: DeviceBackend, options: CaptureOptions
) -> GraphRunner | EagerRunner:
    """A runner for a graph that the engine loaded: captured here, by the engine, or not at all."""
    if engine.captured:
        return GraphRunner(graph, facts, backend, options)
    from warmrank.worker.capture.eager import EagerRunner, SelfCapturingRunner

    if engine.captures_itself:
        return SelfCapturingRunner(graph, facts, backend, options.limit)
    return EagerRunner(graph, facts, backend)


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


def autocast_kinds(device_kind: str) -> tuple[str, ...]:
    """The kinds of devices whose autocast may reach a graph's operators."""
    return tuple(dict.fromkeys(("cpu", device_kind)))


def is_plain(kinds: tuple[str, ...]) -> bool:
    """Whether neither autograd nor autocast is on: then `plain` changes nothing."""
    return not (torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, kinds)))


@contextlib.contextmanager
def plain(kinds: Iterable[str]) -> Iterator[None]:
    """No autograd, and no autocast: the casts that autocast made are operators of the graph already."""
    with contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def ordinary_tensors(mutated: Iterable[torch.Tensor]) -> Iterator[None]:
    """Out of inference mode, so that what is allocated here can be written to in and out of it.

    Unless a mutated input was made in that mode: then every call has to be in it.
    """
    if not torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in mutated):
        yield
        return
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
