"""The capture runtime: one captured graph per shape key, and the seeds' three classes of inputs.

* parameters and buffers, and other state of the module: used where they lie; another address means recapture;
* mutated inputs (a KV cache): likewise;
* user inputs: copied into the graph's own buffers before each replay (``clone_input``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from worker.devices.memory import memory_of
from worker.graph_facts import MUTATED, NUMBER, STATE, USER, GraphFacts

if TYPE_CHECKING:
    from worker.configs.compiler_config import CompilerConfig
    from worker.devices import CapturedGraph, DeviceBackend
    from worker.engines import Graph

_log = logging.getLogger("torchair")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """The options of `CompilerConfig` that the runtime obeys.

    Attributes:
        clone_input: copy user inputs into the graph's own buffers; without it a user input at a new
            address means recapture.
        clone_output: return copies, which later replays do not overwrite.
        limit: captures after which further shapes run without capture.
        eager: never capture.
    """

    clone_input: bool = True
    clone_output: bool = False
    limit: int = 64
    eager: bool = False

    @classmethod
    def of(cls, config: CompilerConfig) -> CaptureOptions:
        """The options of a configuration."""
        aclgraph = config.debug.aclgraph
        return cls(
            clone_input=aclgraph.clone_input,
            clone_output=aclgraph.enable_output_clone,
            limit=aclgraph.static_capture_size_limit,
            eager=config.debug.run_eagerly,
        )


@dataclass(slots=True)
class CaptureStatistics:
    """What the runtime did since the function was loaded."""

    captures: int = 0
    recaptures: int = 0
    replays: int = 0
    eager_calls: int = 0


@dataclass(slots=True)
class _Entry:
    """One captured graph, its buffers, and the inputs it was captured for.

    Attributes:
        captured: the graph.
        buffers: its inputs; user inputs have a buffer of their own.
        addresses: of the inputs that are used where they lie.
        mutated: addresses of the storages that it writes to.
        shared: per user input, its address if it lies in such a storage, else 0.
    """

    captured: CapturedGraph
    buffers: tuple[Any, ...]
    addresses: tuple[int, ...]
    mutated: frozenset[int]
    shared: tuple[int, ...]


class GraphRunner:
    """Runs one loaded graph through captured graphs."""

    def __init__(
        self, graph: Graph, facts: GraphFacts, backend: DeviceBackend, options: CaptureOptions
    ) -> None:
        self._graph = graph
        self._backend = backend
        self._options = options
        self._aliased = frozenset(facts.aliased_outputs)
        self._eager = options.eager or bool(facts.data_dependent)
        if facts.data_dependent:
            _log.info("not captured: the size of %s's result depends on data", facts.data_dependent)
        # Buffers and outputs are shared by all calls: one at a time. Their outputs are still overwritten by
        # the next call, of any thread, as on the device; enable_output_clone gives each call its own.
        self._lock = threading.RLock()
        copied = USER if options.clone_input else None
        classes = facts.input_classes
        self._copied = tuple(index for index, kind in enumerate(classes) if kind == copied)
        self._fixed = tuple(index for index, kind in enumerate(classes) if kind not in (copied, NUMBER))
        self._mutated = tuple(index for index, kind in enumerate(classes) if kind == MUTATED)
        self._shaped = tuple(index for index, kind in enumerate(classes) if kind not in (STATE, NUMBER))
        self._numbers = tuple(index for index, kind in enumerate(classes) if kind == NUMBER)
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._warned = False
        self._pool = backend.pool()
        self.statistics = CaptureStatistics()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``; captures first where no captured graph fits."""
        with self._lock, _inference():
            if self._eager:
                self.statistics.eager_calls += 1
                return self._graph(*inputs)
            entry = self._entry(inputs)
            if entry is None:
                self.statistics.eager_calls += 1
                return self._graph(*inputs)
            self._fill(entry, inputs)
            entry.captured.replay()
            self.statistics.replays += 1
            outputs = entry.captured.outputs
            return self._cloned(outputs) if self._options.clone_output else outputs

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        """Capture for ``inputs`` without lasting effect on mutated inputs; returns the graph's outputs."""
        with self._lock, _inference():
            entry = None if self._eager else self._entry(inputs)
            if entry is not None:
                return entry.captured.outputs
            with self._restored(inputs):
                return self._graph(*inputs)

    def signatures(self) -> tuple[str, ...]:
        """Shape keys captured so far, as text, for the capture plan."""
        return tuple(repr(key) for key in self._entries)

    def _entry(self, inputs: Sequence[Any]) -> _Entry | None:
        key = tuple(inputs[index].shape for index in self._shaped) + tuple(
            inputs[index] for index in self._numbers
        )
        addresses = tuple(inputs[index].data_ptr() for index in self._fixed)
        entry = self._entries.get(key)
        if entry is not None and entry.addresses == addresses and self._same_tensors(entry, inputs):
            return entry
        if entry is not None:
            self.statistics.recaptures += 1
            _log.info("recapture: a parameter, buffer or mutated input is another than the one captured")
        elif len(self._entries) >= self._options.limit:
            self._warn_limit()
            return None
        entry = self._capture(inputs, addresses)
        self._entries[key] = entry
        return entry

    def _same_tensors(self, entry: _Entry, inputs: Sequence[Any]) -> bool:
        """Whether inputs that lie where they lay also look as they did, and share what they shared."""
        for index in self._fixed:
            now, then = inputs[index], entry.buffers[index]
            if now is not then and (now.shape, now.stride(), now.dtype) != (
                then.shape,
                then.stride(),
                then.dtype,
            ):
                return False
        return entry.shared == self._shared(inputs, entry.mutated)

    def _shared(self, inputs: Sequence[Any], mutated: frozenset[int]) -> tuple[int, ...]:
        """Addresses of the user inputs that lie in a mutated input's memory; 0 for the others."""
        if not mutated:
            return ()
        return tuple(
            inputs[index].data_ptr() if inputs[index].untyped_storage().data_ptr() in mutated else 0
            for index in self._copied
        )

    def _warn_limit(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%d graphs are captured, which is debug.aclgraph.static_capture_size_limit; further shapes "
                "run without capture. Raise the limit, or use fewer shapes.",
                self._options.limit,
            )

    def _capture(self, inputs: Sequence[Any], addresses: tuple[int, ...]) -> _Entry:
        with _ordinary_tensors(inputs[index] for index in self._mutated):
            return self._captured(inputs, addresses)

    def _captured(self, inputs: Sequence[Any], addresses: tuple[int, ...]) -> _Entry:
        mutated = frozenset(inputs[index].untyped_storage().data_ptr() for index in self._mutated)
        shared = self._shared(inputs, mutated)
        # A user input inside a mutated input's memory must see its writes, so it is not copied.
        copied = frozenset(
            index for position, index in enumerate(self._copied) if not (shared and shared[position])
        )
        with self._restored(inputs):
            captured = self._backend.capture(
                self._graph, inputs, copied=copied, aliased=self._aliased, pool=self._pool
            )
        self.statistics.captures += 1
        return _Entry(
            captured=captured,
            buffers=captured.inputs,
            addresses=addresses,
            mutated=mutated,
            shared=shared,
        )

    @contextlib.contextmanager
    def _restored(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Gives mutated inputs their values back at the end."""
        saved = [inputs[index].clone() for index in self._mutated]
        try:
            yield
        finally:
            for index, before in zip(self._mutated, saved, strict=True):
                inputs[index].copy_(before)

    def _fill(self, entry: _Entry, inputs: Sequence[Any]) -> None:
        for index in self._copied:
            buffer = entry.buffers[index]
            if buffer is not inputs[index]:
                memory_of(buffer).copy_(memory_of(inputs[index]))

    def _cloned(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value.clone() if isinstance(value, torch.Tensor) and index not in self._aliased else value
            for index, value in enumerate(outputs)
        )


@contextlib.contextmanager
def _inference() -> Iterator[None]:
    """No autograd, and no autocast: the casts that autocast made are operators of the graph already."""
    with contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def _ordinary_tensors(mutated: Iterable[torch.Tensor]) -> Iterator[None]:
    """Out of inference mode, so that what is allocated here can be written to in and out of it.

    Unless a mutated input was made in that mode: then every call has to be in it.
    """
    if not torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in mutated):
        yield
        return
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
