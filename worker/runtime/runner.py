"""Runs one loaded graph through captured graphs, and by the seeds' three classes of inputs.

* parameters and buffers, and other state of the module: used where they lie; another address means recapture;
* mutated inputs (a KV cache): likewise;
* user inputs: copied into the graph's own buffers before each replay (``clone_input``).

The first call of a shape runs the graph as it is: a shape that comes only once never pays for a capture, and
the first output of a process need not wait for one. The second call captures it, and from then on it is
replayed (`worker.capture`, which is imported then).

Conditions on the module's tensors, and on those of globals and closures, were checked once. Compiled kernels
take addresses for granted, and a recorded graph much more, so every run looks again, however guards are set:
after `Settled.check` returned, each of them has the type, dtype, device, layout, sizes and strides that
its conditions were found to hold for, and all its elements lie in its storage.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.devices import forbid_writes, lies_in_storage, picker
from warmrank.worker.errors import StateChanged
from warmrank.worker.runtime.artifact import MUTATED, NUMBER, STATE, USER, GraphFacts
from warmrank.worker.torch_private.warm import Metadata, known_groups
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.capture.captures import CapturePool, Captures
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.capture.statistics import CaptureStatistics, PoolStatistics
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.devices import PoolHandle
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.engines import Engine, Graph
    from warmrank.worker.torch_private.unchanged import TensorWatch

_log = logging.getLogger("torchair")
_address = torch.Tensor.data_ptr
_call_locks: weakref.WeakSet[Any] = weakref.WeakSet()

# Shapes that ran once are remembered up to this many times the limit of captures: a function that goes round
# through more captures none of them, and would have replayed at most one call in as many.
_SHAPES_PER_CAPTURE = 16
_WORDS = {MUTATED: "mutated input", USER: "user input"}


def call_lock() -> threading.RLock:
    """A new lock to hold in calls; a forked process finds it free, though another thread held it."""
    lock = threading.RLock()
    _call_locks.add(lock)
    return lock


def _free_call_locks() -> None:
    for lock in _call_locks:
        if not lock._is_owned():  # noqa: SLF001 - by the thread that forks, within a call
            lock._at_fork_reinit()  # noqa: SLF001 - as logging does


os.register_at_fork(after_in_child=_free_call_locks)


class InputLayout:
    """The inputs of one graph by what is done with them; positions, in order.

    Attributes:
        copied: user inputs that are copied into buffers.
        fixed: inputs that are used where they lie.
        compared: those of them whose address is compared on each call.
        mutated: inputs that the graph writes to.
        kept: inputs that live longer than a call: the module's, and mutated ones.
        shaped: inputs whose shape is part of the key.
        numbers: inputs that are numbers, part of the key too.
        of_module: tensors of the module.
    """

    def __init__(self, facts: GraphFacts, *, clone_input: bool, frozen_parameters: bool) -> None:
        self._classes = facts.input_classes
        self._names = facts.input_names
        self.of_module = frozenset(facts.module_inputs)
        by_kind: dict[str, set[int]] = {STATE: set(), MUTATED: set(), USER: set(), NUMBER: set()}
        for index, kind in enumerate(self._classes):
            by_kind[kind].add(index)
        frozen = by_kind[STATE] & self.of_module
        tensors = by_kind[STATE] | by_kind[MUTATED] | by_kind[USER]
        fixed = tensors - by_kind[USER] if clone_input else tensors
        self.numbers = tuple(sorted(by_kind[NUMBER]))
        self.mutated = tuple(sorted(by_kind[MUTATED]))
        self.copied = tuple(sorted(tensors - fixed))
        self.fixed = tuple(sorted(fixed))
        self.shaped = tuple(sorted(tensors - frozen))
        self.compared = tuple(sorted(fixed - frozen if frozen_parameters else fixed))
        self.kept = tuple(sorted(fixed & (self.of_module | by_kind[MUTATED])))
        self._pick_mutated = picker(self.mutated)

    def key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Key that tells one captured graph of a function from another."""
        return (*[inputs[index].shape for index in self.shaped], *[inputs[index] for index in self.numbers])

    def require_tensors(self, inputs: Sequence[Any]) -> None:
        """Refuse inputs that are no tensors any more: the module's are not asked about on each call."""
        for index, kind in enumerate(self._classes):
            if kind != NUMBER and not isinstance(inputs[index], torch.Tensor):
                raise StateChanged(self._name(index), inputs[index])

    def forbids_writes(self, inputs: Sequence[Any]) -> bool:
        """True if a mutated input was made in inference mode, and would be written to outside of it."""
        return bool(self.mutated) and forbid_writes(self._pick_mutated(inputs))

    def note_writes(self, inputs: Sequence[Any]) -> None:
        """Tell autograd that mutated inputs were written to, past operators that would have done so."""
        if self.mutated:
            torch.autograd.graph.increment_version(self._pick_mutated(inputs))

    def described(self, index: int) -> str:
        """An input in words."""
        state = "parameter or buffer" if index in self.of_module else "input that is used where it lies"
        return f"{_WORDS.get(self._classes[index], state)} {self._name(index)}"

    def _name(self, index: int) -> str:
        return self._names[index] if self._names else f"input {index}"


class Settled:
    """Tensors that no call brings, as they were when their conditions were found to hold.

    Raises `StateChanged` for one that has elements outside of its storage.

    Attributes:
        positions: of these inputs.
        since: another object after any of them became another one, changed, or moved.
    """

    __slots__ = ("_addresses", "_layout", "_metadata", "_pick", "_strided", "_watch", "positions", "since")

    def __init__(self, layout: InputLayout, positions: tuple[int, ...], inputs: Sequence[Any]) -> None:
        self.positions = positions
        self.since = object()
        self._layout = layout
        self._pick = picker(positions)
        self._metadata = Metadata(self._pick(inputs))
        # Those that lie somewhere: a fake one, of an offline build, does not, and is never run on.
        tensors = [(index, inputs[index]) for index in positions]
        self._strided = picker(
            [
                index
                for index, value in tensors
                if value.layout is torch.strided and type(value).__name__ != "FakeTensor"
            ]
        )
        self._watch: TensorWatch | None = None  # tells quickly if nothing changed; a first call needs none
        self._addresses: list[int] = []
        self._look(inputs)

    def changed(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Positions of those that are something else now."""
        return tuple(self.positions[number] for number in self._metadata.changed(self._pick(inputs)))

    def check(self, inputs: Sequence[Any]) -> None:
        """Compare them, and look at the memory of those that moved; where nothing changed, in microseconds.

        Raises `StateChanged`: one of them is something else now, or has elements outside of its storage.
        """
        if self._watch is None:
            from warmrank.worker.torch_private.unchanged import TensorWatch

            self._watch = TensorWatch(self.positions)
        if self._watch.same(inputs):
            return
        self.since = object()
        words = self._watch.take(inputs)
        if not self._metadata.of(self._pick(inputs)):
            for index in self.changed(inputs):
                raise StateChanged(self._layout.described(index), inputs[index])
        if [*map(_address, self._strided(inputs))] != self._addresses:
            self._look(inputs)
        self._watch.keep(words)

    def _look(self, inputs: Sequence[Any]) -> None:
        addresses = [*map(_address, self._strided(inputs))]
        for index in self.positions:
            if not lies_in_storage(inputs[index]):
                found = f"a tensor in {inputs[index].untyped_storage().nbytes()} bytes of storage"
                raise StateChanged(self._layout.described(index), found)
        self._addresses = addresses


class CaptureOptions(Value):
    """Options of captures and of their memory."""

    # memory reuse, mode three: copy user inputs into buffers of the pool; without it a user input at a new
    # address means recapture
    clone_input: bool = True
    clone_output: bool = False  # return copies, which later replays do not overwrite
    limit: int = 64  # captured graphs of one function, after which further shapes run without capture
    eager: bool = False  # never capture
    # memory reuse, mode one: handle of the pool that all functions of the configuration share
    pool: PoolHandle | None = None
    # memory reuse, mode two, not wanted: else all shapes of one function share a pool. Mode one takes its
    # place.
    pool_for_each_shape: bool = False
    frozen_parameters: bool = False  # parameters and buffers never move, so their addresses are not compared
    force_recapture: bool = False  # capture again for every call, for looking into faults

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
    """Counters of one runner, for `worker.capture.statistics`.

    Attributes:
        ran: hashes of shapes that ran once and are not captured yet, the oldest first. Two shapes of one hash
            are harmless: the second is captured at its first call, or not at all.
        never: why nothing is captured, or nothing any more; empty where a graph may be.
    """

    def __init__(self) -> None:
        self.never = ""
        self.ran: dict[int, None] = {}
        self.captures = self.replays = self.warm_up_runs = 0
        self.recaptured: Counter[str] = Counter()
        self.eager: Counter[str] = Counter()


class GraphRunner:
    """Runs one loaded graph through captured graphs; as it is, where none of it may be captured.

    Buffers and outputs are shared by all calls, so calls run one at a time: of all threads, and of all
    functions that share the pool. Outputs of a replay are still overwritten by the next one, as on the
    device; ``enable_output_clone`` gives each call its own, which those of a shape's first call are anyway.

    Attributes:
        layout: the inputs by what is done with them.
        settled: inputs that conditions were found to hold for; at first none.
        due: positions whose inputs in the next run are taken for that; None where nothing is due.
        captures_itself: the graph's engine captures.
        is_compiled: the graph is compiled kernels, which are called as they are.
        given_pool: the pool of a handle in the options.
        lock: held in every call.
    """

    captures_itself = False

    def __init__(
        self,
        graph: Graph,
        facts: GraphFacts,
        backend: DeviceBackend,
        options: CaptureOptions,
        *,
        is_compiled: bool = False,
    ) -> None:
        self.graph, self.facts, self.backend, self.options = graph, facts, backend, options
        self.is_compiled = is_compiled
        self.layout = InputLayout(
            facts, clone_input=options.clone_input, frozen_parameters=options.frozen_parameters
        )
        self.settled = Settled(self.layout, (), ())
        self.due: tuple[int, ...] | None = None
        self._autocast_kinds = tuple(dict.fromkeys(("cpu", backend.kind)))
        self.given_pool: CapturePool | None = None
        self.lock = call_lock()
        if options.pool is not None:
            from warmrank.worker.capture.captures import pool_of

            self.given_pool = pool_of(backend, options.pool)
            self.lock = self.given_pool.lock
        self._captures: Captures | None = None  # with a shape's second call
        self.tally = Tally()
        if is_compiled:
            self.tally.never = "kernels compiled ahead, which are not captured"
            return
        if options.eager:
            self.tally.never = "asked for (debug.run_eagerly)"
        elif facts.uncapturable:
            self.tally.never = facts.uncapturable
        elif facts.random and backend.kind == "cpu":
            # Run operator by operator it draws what the function itself would.
            self.tally.never = f"{facts.random} draws random numbers, for which a CPU graph has no generator"
        if self.tally.never:
            _log.info("not captured: %s", self.tally.never)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``; from a shape's second call on out of a captured graph.

        Raises `StateChanged`: a tensor of the module is not what the graph was loaded for; nothing ran.
        """
        with self.lock:
            if not (torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, self._autocast_kinds))):
                return self._run(inputs)
            with plain(self._autocast_kinds):
                return self._run(inputs)

    def prepare(self, *inputs: Any) -> None:
        """Capture for ``inputs`` without lasting effect on mutated inputs; run the graph where it cannot be.

        As a replay would, it overwrites what other graphs of the pool returned.
        """
        with self.lock, plain(self._autocast_kinds):
            self.layout.require_tensors(inputs)
            self._check(inputs)
            self._prepare(inputs)

    def run_alone(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph as it is, whatever it was loaded for, and without the data of other ranks."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(plain(self._autocast_kinds))
            if known_groups() and not self.captures_itself:
                from warmrank.worker.torch_private.collectives import Alone

                stack.enter_context(Alone())
            return self.graph(*inputs)

    def hand_over(self) -> None:
        """Let the node keep what was made at run time, for later processes: here, nothing."""

    @property
    def max_captures(self) -> int:
        """Number of graphs that may be captured."""
        return 0 if self.tally.never else self.options.limit

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that are captured, for the capture plan."""
        with self.lock:
            return () if self._captures is None else self._captures.shapes()

    def shapes_for(self, inputs: Sequence[Any]) -> Shapes | None:
        """Entry of the capture plan for these inputs; None if nothing would be captured for them."""
        if not self.max_captures:
            return None
        from warmrank.worker.capture.plan import shapes_of

        return shapes_of(self.layout, inputs)

    @property
    def statistics(self) -> CaptureStatistics:
        """Counters since the function was loaded."""
        from warmrank.worker.capture.statistics import total

        return total([self])

    def pools(self) -> tuple[PoolStatistics, ...]:
        """Of each pool that graphs were captured into."""
        return () if self._captures is None else self._captures.pool_statistics()

    def _captured(self) -> Captures:
        if self._captures is None:
            from warmrank.worker.capture.captures import Captures

            self._captures = Captures(self)
        return self._captures

    def _check(self, inputs: Sequence[Any]) -> None:
        """Check the settled inputs; see `Settled.check`."""
        if self.due is not None:
            self.layout.require_tensors(inputs)
            self.settled, self.due = Settled(self.layout, self.due, inputs), None
        elif self.settled.positions:
            self.settled.check(inputs)

    def _prepare(self, inputs: tuple[Any, ...]) -> None:
        self._captured().prepare(self.layout.key(inputs), inputs)

    def _run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._check(inputs)
        captures, tally = self._captures, self.tally
        if captures is not None and self.layout.forbids_writes(inputs):
            return self.graph(*inputs)  # raises as eager does; a replay would write past torch's checks
        if captures is not None and (outputs := captures.replay_last(inputs)) is not None:
            return outputs
        if captures is None and tally.never:
            tally.eager[tally.never] += 1
            outputs = self.graph(*inputs)
            self.layout.note_writes(inputs)
            return outputs
        self.layout.require_tensors(inputs)
        if captures is None and self.layout.forbids_writes(inputs):
            return self.graph(*inputs)
        key = self.layout.key(inputs)
        if tally.never or hash(key) in tally.ran:
            return self._captured().run(key, inputs)
        if not (self.options.limit if captures is None else captures.may_add(key)):
            return self._captured().run(key, inputs)
        # A shape's first call runs the graph as it is, which is all the warming up that a capture needs.
        # Outputs are of the kind that replays return, or one loop would be given both kinds.
        with ordinary_tensors([inputs[index] for index in self.layout.mutated]):
            outputs = self.graph(*inputs)
        tally.ran[hash(key)] = None
        if len(tally.ran) > max(1, self.options.limit * _SHAPES_PER_CAPTURE):
            del tally.ran[next(iter(tally.ran))]
        tally.warm_up_runs += 1
        return outputs


def runner_for(
    engine: Engine, graph: Any, facts: GraphFacts, backend: DeviceBackend, options: CaptureOptions
) -> GraphRunner:
    """A runner for a graph that the engine loaded: captured here, by the engine, or not at all."""
    if engine.captures_itself:
        from warmrank.worker.capture.self_capturing import SelfCapturingRunner

        return SelfCapturingRunner(graph, facts, backend, options)
    return GraphRunner(graph, facts, backend, options, is_compiled=not engine.captured)


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
