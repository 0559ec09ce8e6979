"""The captured graphs of one runner: made from a shape's second call on, and replayed; and their pools.

Invariant: a graph is replayed only if every input that it reads where it lies is at the address that was
captured, with the layout that was captured; everything else was copied into its buffers just before.

Graphs of one pool lie over each other, so only one of them may run at a time: a lock belongs to a pool, and
all functions that share the pool share the lock.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from warmrank.worker.capture.plan import shapes_of
from warmrank.worker.capture.statistics import PoolStatistics
from warmrank.worker.devices import KINDS, backend_for, duplicate, memory_of, picker
from warmrank.worker.errors import NotCapturable
from warmrank.worker.runtime.runner import call_lock, ordinary_tensors
from warmrank.worker.torch_private.places import hand_out
from warmrank.worker.torch_private.warm import imported, known_groups

if TYPE_CHECKING:
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.devices import CapturedGraph, PoolHandle
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.runtime.runner import GraphRunner, InputLayout, Settled

_log = logging.getLogger("torchair")
_address = torch.Tensor.data_ptr
Key = tuple[Any, ...]
Inputs = tuple[Any, ...]


class CapturePool:
    """One pool and what is in it."""

    def __init__(self, backend: DeviceBackend, handle: PoolHandle | None = None) -> None:
        self.pool = backend.pool(handle)
        self.lock = call_lock()
        self._handle = handle
        # Where each graph's outputs lie, for as long as the graph is kept.
        self._outputs: weakref.WeakKeyDictionary[Entry, list[range]] = weakref.WeakKeyDictionary()

    def add(self, entry: Entry, aliased: Sequence[int]) -> None:
        """Count a graph that was captured into this pool; ``aliased`` outputs lie in its inputs."""
        self._outputs[entry] = [
            _stretch(value.untyped_storage())
            for index, value in enumerate(entry.captured.outputs)
            if index not in aliased and isinstance(value, torch.Tensor)
        ]

    def returned(self, tensor: torch.Tensor) -> bool:
        """True if a tensor lies in what a graph of this pool returned."""
        address = tensor.data_ptr()
        return any(address in memory for outputs in tuple(self._outputs.values()) for memory in outputs)

    def statistics(self) -> PoolStatistics:
        """Bytes that the pool holds, and bytes that sharing it saves."""
        sizes = [entry.captured.size_bytes for entry in tuple(self._outputs.keys())]
        size_bytes = self.pool.size_bytes
        return PoolStatistics(
            handle=self._handle,
            num_graphs=len(sizes),
            size_bytes=size_bytes,
            saved_bytes=max(0, sum(sizes) - size_bytes),
        )


_given: weakref.WeakValueDictionary[tuple[str, Any], CapturePool] = weakref.WeakValueDictionary()
_given_lock = threading.Lock()


def pool_of(backend: DeviceBackend, handle: PoolHandle) -> CapturePool:
    """The pool of a handle that was given, the same for all who give it."""
    with _given_lock:
        pool = _given.get((backend.kind, handle))
        if pool is None:
            pool = _given[backend.kind, handle] = CapturePool(backend, handle)
        return pool


def graph_pool_handle(device_kind: str | None = None) -> PoolHandle:
    """A handle for ``config.aclgraph_config.use_custom_pool``: all functions that get it share one pool.

    TorchAir's scripts call ``torch.npu.graph_pool_handle()``.

    It is ``cpu``, ``cuda`` or ``npu``; by default the accelerator that torch finds, else the CPU.

    Raises:
        DeviceUnavailable: this machine has no such device, or there is no such device kind.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    present = found.type if found is not None and found.type in KINDS else "cpu"
    return backend_for(device_kind or present).new_handle()


class _Made(NamedTuple):
    """The result of a capture."""

    entry: Entry | None  # None where nothing can be captured
    inputs: Inputs  # whose values a capture left as they were
    outputs: tuple[Any, ...] | None  # of the graph, where it ran


class Captures:
    """The captured graphs of one runner; its lock is held in every call.

    Attributes:
        entries: the graphs by `InputLayout.key`.
    """

    def __init__(self, runner: GraphRunner) -> None:
        # Its runner's alone: memory of graphs goes with the runner, not when Python looks for cycles.
        self._runner = cast("GraphRunner", weakref.proxy(runner))
        self._layout, self._options, self._tally = runner.layout, runner.options, runner.tally
        self.entries: dict[Key, Entry] = {}
        self._pools: dict[Any, CapturePool] = {}
        self._last: Entry | None = None
        self._thread = 0
        self._threads: set[int] = set()
        self._warned: set[str] = set()

    def may_add(self, key: Key) -> bool:
        """True if a graph may be captured for this key, and none is."""
        return not (key in self.entries or self._tally.never or self._is_full())

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that are captured, for the capture plan."""
        return tuple(entry.shapes for entry in self.entries.values() if entry.shapes is not None)

    def pool_statistics(self) -> tuple[PoolStatistics, ...]:
        """Of each pool that graphs were captured into."""
        return tuple(pool.statistics() for pool in self._pools.values())

    def prepare(self, key: Key, inputs: Inputs) -> None:
        """See `GraphRunner.prepare`."""
        entry = self.entries.get(key)
        if entry is None or not entry.fits(inputs, self._runner.settled):
            entry, inputs, outputs = self._capture(key, inputs, in_call=False)
            has_run = entry is not None or outputs is not None
        else:
            has_run = not known_groups()  # other ranks, to which it sends, may have to capture
        if not has_run:
            with restored(inputs, self._layout.mutated):
                self._runner.graph(*inputs)

    def replay_last(self, inputs: Inputs) -> tuple[Any, ...] | None:
        """Outputs of the graph that was replayed last; None where it does not fit these inputs."""
        entry = self._last
        if entry is None or not entry.fits(inputs, self._runner.settled):
            return None
        entry.fill(inputs)
        return self._replay(entry, inputs)

    def run(self, key: Key, inputs: Inputs) -> tuple[Any, ...]:
        """Outputs of a captured graph; of the graph as it is where nothing can be captured."""
        entry, recapture = self.entries.get(key), self._options.force_recapture
        outputs = None
        if entry is not None and not recapture and entry.fits(inputs, self._runner.settled):
            entry.fill(inputs)
        else:
            entry, inputs, outputs = self._capture(key, inputs, in_call=True)
        if entry is None:
            self._tally.eager[self._tally.never or "static_capture_size_limit is reached"] += 1
            outputs = self._runner.graph(*inputs) if outputs is None else outputs
            self._layout.note_writes(inputs)
            return outputs
        if not recapture:
            self._last = entry
        return self._replay(entry, inputs, ran=outputs is not None)

    def _replay(self, entry: Entry, inputs: Inputs, *, ran: bool = False) -> tuple[Any, ...]:
        """Outputs of a replay; with ``ran`` they are there already."""
        if (thread := threading.get_ident()) != self._thread:
            # Of threads that call in turns; one that takes over from another is nothing to warn of.
            if thread in self._threads and not self._options.clone_output:
                self._warn_once(
                    "several threads call a captured function, and each call overwrites what the one before "
                    "returned, whichever thread holds that; set debug.aclgraph.enable_output_clone"
                )
            self._threads.add(thread)
            self._thread = thread
        if not ran:
            entry.captured.replay()
        self._tally.replays += 1
        self._layout.note_writes(inputs)
        return entry.hand_out(inputs)

    def _capture(self, key: Key, inputs: Inputs, *, in_call: bool) -> _Made:
        """Capture for these inputs, which lie in the buffers then; ``in_call``: what runs is the call."""
        layout, tally = self._layout, self._tally
        if tally.never or (key not in self.entries and self._is_full()):
            return _Made(None, inputs, None)
        if (old := self.entries.pop(key, None)) is not None:  # so that the next one gets its memory
            cause = "force_recapture" if old.fits(inputs) else old.misfit(inputs)
            tally.recaptured[cause] += 1
            tally.ran[hash(key)] = None  # should the capture fail, the next call tries again
            self._last = None
            _log.info("recapture: %s", cause)
        intact = inputs
        with ordinary_tensors(inputs[index] for index in layout.mutated):
            try:
                # A user input inside a mutated input's memory must see its writes, so it is not copied.
                copied = frozenset(layout.copied) - inside(inputs, layout)
                if known_groups():
                    from warmrank.worker.torch_private.collectives import wait

                    wait(inputs[index] for index in copied)
                # Those that are may lie in the pool, where the graph writes while it is recorded.
                intact = tuple(
                    duplicate(value) if index in copied else value for index, value in enumerate(inputs)
                )
                entry = self._captured(key, inputs, intact, copied, in_call=in_call)
            except NotCapturable as error:
                tally.never = f"it cannot be captured: {error.message}"
                _log.warning("a graph runs without capture from now on; %s", tally.never)
                return _Made(None, intact, error.outputs)
        tally.captures += 1
        self.entries[key] = entry
        tally.ran.pop(hash(key), None)
        return _Made(entry, inputs, entry.captured.outputs if self._runner.backend.runs_captures else None)

    def _captured(
        self, key: Key, inputs: Inputs, intact: Inputs, copied: frozenset[int], *, in_call: bool
    ) -> Entry:
        runner, layout = self._runner, self._layout
        aliased = frozenset(runner.facts.aliased_outputs)
        # The given pool (mode one), one for all shapes (mode two), or the shape's own.
        place = key if runner.given_pool is None and self._options.pool_for_each_shape else None
        if place not in self._pools:
            self._pools[place] = runner.given_pool or CapturePool(runner.backend)
        pool = self._pools[place]
        for index in layout.kept:
            if pool.returned(inputs[index]):
                self._warn_once(
                    f"{layout.described(index)} lies in memory that a captured graph returned: the "
                    "next replay in this pool overwrites it. Clone it first, or set "
                    "debug.aclgraph.enable_output_clone."
                )
        # A run that only warms up would send to ranks that do not capture now, and wait for them.
        warm_up = not (in_call and known_groups())
        is_the_call = in_call and (runner.backend.runs_captures or not warm_up)
        with contextlib.nullcontext() if is_the_call else restored(inputs, layout.mutated):
            captured = runner.backend.capture(
                runner.graph, intact, copied=copied, aliased=aliased, pool=pool.pool, warm_up=warm_up
            )
        entry = Entry(
            layout,
            captured,
            inputs,
            copied,
            clone_output=self._options.clone_output,
            stored=runner.facts.stored_outputs,
        )
        pool.add(entry, runner.facts.aliased_outputs)
        return entry

    def _is_full(self) -> bool:
        full = len(self.entries) >= self._options.limit
        if full:
            self._warn_once(
                f"{self._options.limit} graphs are captured, which is "
                "debug.aclgraph.static_capture_size_limit; further shapes run without capture. "
                "Raise the limit, or use fewer shapes."
            )
        return full

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)


@contextlib.contextmanager
def restored(inputs: Sequence[Any], written: Sequence[int]) -> Iterator[None]:
    """Gives written inputs their values back at the end, and generators of random numbers their states.

    An operator of the user's may draw numbers although nothing says so.
    """
    saved = [memory_of(inputs[index]).clone() for index in written]
    generators: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    if numpy_random := imported("numpy.random"):
        generators.append((numpy_random.set_state, numpy_random.get_state()))
    try:
        yield
    finally:
        for put_back, drawn_from in generators:
            put_back(drawn_from)
        with torch.inference_mode():  # in which every tensor can be written to
            for index, before in zip(written, saved, strict=True):
                memory_of(inputs[index]).copy_(before)


class _Placed:
    """Inputs that are used where they lie, and where that is."""

    __slots__ = ("_pick", "_tensors", "addresses", "layouts", "positions")

    def __init__(self, positions: tuple[int, ...], inputs: Sequence[Any]) -> None:
        self.positions = positions
        self._pick = picker(positions)
        self._tensors = self._pick(inputs)
        self.addresses = [*map(_address, self._tensors)]
        self.layouts = [*map(_layout_of, self._tensors)]

    def same(self, inputs: Sequence[Any]) -> bool:
        """True if inputs lie where these do."""
        tensors = self._pick(inputs)
        try:
            if [*map(_address, tensors)] != self.addresses:
                return False
        except TypeError:  # no tensor any more
            return False
        # An object that was here before has the layout that it had: `worker.runtime.runner` looks at that.
        if not all(map(operator.is_, tensors, self._tensors)):
            if [*map(_layout_of, tensors)] != self.layouts:
                return False
            self._tensors = tensors
        return True


class Entry:
    """One captured graph and what it was captured for.

    Attributes:
        captured: the graph.
        hand_out: makes a call's outputs of its inputs, after a replay.
        shapes: what the capture plan says of it; None where that cannot be written.
    """

    __slots__ = (
        "__weakref__", "_called", "_copied", "_end", "_key", "_layout", "_mutated", "_numbers",
        "_pick_numbers", "_placed", "_positions", "_rest", "_since", "captured", "hand_out", "shapes",
    )  # fmt: skip

    def __init__(
        self,
        layout: InputLayout,
        captured: CapturedGraph,
        inputs: Sequence[Any],
        copied: frozenset[int],
        *,
        clone_output: bool,
        stored: tuple[int, ...],
    ) -> None:
        self.captured = captured
        self.hand_out = hand_out(
            captured.outputs, captured.origins, len(inputs), clone=clone_output, stored=stored
        )
        self.shapes = shapes_of(layout, inputs)
        self._key = layout.key(inputs)
        self._layout = layout
        within = (index for index in layout.copied if index not in copied)
        self._placed = self._rest = _Placed((*layout.compared, *within), inputs)
        self._positions: tuple[int, ...] = ()
        self._since: object = None
        self._called = tuple(
            (index, inputs[index].shape, inputs[index].stride(), inputs[index].storage_offset())
            for index in self._placed.positions
            if index not in layout.of_module
        )
        self._pick_numbers = picker(layout.numbers)
        self._numbers = self._pick_numbers(inputs)
        self._mutated = _written(inputs, layout.mutated)
        self._end = max((memory.stop for memory in self._mutated), default=0)
        # Of each copied input: position, shape, the strides that it must have (None for any), and memory to
        # copy into. Where elements overlap, memory is copied as it lies, so the other side has to lie alike.
        self._copied = []
        for index in sorted(copied):
            value, buffer, memory = inputs[index], captured.inputs[index], memory_of(captured.inputs[index])
            self._copied.append((index, value.shape, None if memory is buffer else value.stride(), memory))

    def fits(self, inputs: Sequence[Any], settled: Settled | None = None) -> bool:
        """True if a replay computes what the graph would compute of these inputs; a few microseconds.

        ``settled`` are those that were just looked at, where they lie, too.
        """
        if not self._lie_where_captured(inputs, settled):
            return False
        for index, shape, strides, offset in self._called:
            tensor = inputs[index]
            if (
                tensor.shape != shape
                or tensor.stride() != strides
                or tensor.storage_offset() != offset  # from which `as_strided` counts
            ):
                return False
        if self._pick_numbers(inputs) != self._numbers:
            return False
        for index, shape, strides, _ in self._copied:
            tensor = inputs[index]
            if tensor.shape != shape or (strides is not None and tensor.stride() != strides):
                return False
            if self._mutated and self._is_inside(tensor):
                return False
        return True

    def fill(self, inputs: Sequence[Any]) -> None:
        """Copy the user's inputs into the buffers."""
        for index, _, strides, buffer in self._copied:
            buffer.copy_(inputs[index] if strides is None else memory_of(inputs[index]))

    def misfit(self, inputs: Sequence[Any]) -> str:
        """The reason, in words, why inputs of this key do not fit."""
        described = self._layout.described
        if self._layout.key(inputs) != self._key:
            return "another shape"  # `fits` is asked about inputs of every key
        placed = self._placed
        for index, address, layout in zip(placed.positions, placed.addresses, placed.layouts, strict=True):
            if inputs[index].data_ptr() != address:
                return f"{described(index)} has a new address"
            if _layout_of(inputs[index]) != layout:
                return f"{described(index)} has another layout"
        for index, *_ in self._copied:
            if self._is_inside(inputs[index]):
                return f"{described(index)} now lies in a mutated input"
        return "user inputs have other strides"

    def _lie_where_captured(self, inputs: Sequence[Any], settled: Settled | None) -> bool:
        """Compare addresses; of the settled inputs only after something about them changed."""
        if settled is not None and settled.since is self._since:
            return self._rest.same(inputs)
        if not self._placed.same(inputs):
            return False
        if settled is not None:
            if self._positions is not settled.positions:
                elsewhere = frozenset(settled.positions)
                rest = tuple(index for index in self._placed.positions if index not in elsewhere)
                self._positions, self._rest = settled.positions, _Placed(rest, inputs)
            self._since = settled.since
        return True

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        """True if a tensor lies in the memory of a mutated input, whose writes it then has to see."""
        return tensor.data_ptr() < self._end and _overlaps(tensor, self._mutated)


def inside(inputs: Sequence[Any], layout: InputLayout) -> frozenset[int]:
    """Positions of user inputs that lie in the memory of a mutated input."""
    for index in (*layout.fixed, *layout.copied):
        if inputs[index].layout is not torch.strided:
            what = f"{layout.described(index)} has layout {inputs[index].layout}"
            raise NotCapturable(f"{what}, which lies at no address")
    mutated = _written(inputs, layout.mutated)
    return frozenset(index for index in layout.copied if _overlaps(inputs[index], mutated))


def _stretch(storage: torch.UntypedStorage) -> range:
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _written(inputs: Sequence[Any], mutated: Sequence[int]) -> frozenset[range]:
    """Stretches of memory that the graph may write to."""
    return frozenset(_stretch(inputs[index].untyped_storage()) for index in mutated)


def _overlaps(tensor: torch.Tensor, stretches: Iterable[range]) -> bool:
    """True if a tensor may have memory in one of them, if only as a slice of one array of numpy's."""
    begin, end = tensor.data_ptr(), _stretch(tensor.untyped_storage()).stop
    return any(begin < memory.stop and memory.start < end for memory in stretches)


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    lazy_bits = tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, *lazy_bits
