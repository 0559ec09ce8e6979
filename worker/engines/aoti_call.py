"""What a loaded graph of engine ``aoti`` is: library, then tail, called with the graph's inputs.

Invariants: a result shares memory with exactly what it shares in eager. Inductor may hand out one buffer as
two results (two equal expressions), so the first call looks whether results share memory with each other or
with an input; those that do are copied from then on. A graph that writes to inputs was compiled for inputs
that do not overlap; where they do, the operators are replayed one by one instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from warmrank.worker.devices.memory import picker
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.runtime.artifact import STATE

_log = logging.getLogger("torchair")
Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class Parts(NamedTuple):
    """A loaded graph. No dataclass: to make one of so many fields takes a millisecond, in every warm process.

    Attributes:
        open: makes what runs the library on a device; None where there is none.
        tensors: positions of the inputs that the library takes.
        numbers: positions of the numbers that it takes, as sizes.
        constants: tensors that it takes after them.
        tail: makes the results of the tail's inputs and the library's results; None where these are they.
        tail_inputs: positions of the inputs that the tail takes.
        on_cpu: no input lies on an accelerator.
        written: positions of the inputs that the library writes to.
        classes: `worker.graph_facts` on each input.
        replay: the graph, operator by operator.
    """

    open: Callable[[torch.device], Run] | None
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    tail: Callable[..., tuple[Any, ...]] | None
    tail_inputs: tuple[int, ...]
    on_cpu: bool
    written: tuple[int, ...]
    classes: tuple[str, ...]
    replay: Callable[..., tuple[Any, ...]]


class CompiledGraph:
    """Calls the parts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._run: Run | None = None
        self._take = _taker(parts)
        self._tail_inputs = picker(parts.tail_inputs)
        self._copied: frozenset[int] | None = None  # None until the first call has looked
        self._warned = False
        self._overlap = _overlap_check(parts)
        if parts.open is not None and parts.on_cpu:
            self._opened(torch.device("cpu"))  # a fault shows at load, not at the first call

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Results of the graph."""
        parts = self._parts
        if parts.open is None:
            made: Sequence[torch.Tensor] = ()
        else:
            if self._overlap is not None and self._overlap(inputs):
                self._warn()
                return parts.replay(*inputs)
            taken = self._take(inputs)
            run = self._run or self._opened(_device(taken))
            made = run(taken)
            if self._copied is None or self._copied:
                made = self._own(made, taken)
        if parts.tail is None:
            return tuple(made)
        return parts.tail(*self._tail_inputs(inputs), *made)

    def _opened(self, device: torch.device) -> Run:
        assert self._parts.open is not None  # noqa: S101 - callers looked
        self._run = self._parts.open(device)
        return self._run

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "inputs of a graph that writes to its inputs share memory, which compiled kernels are not "
                "made for; the graph is replayed operator by operator whenever they do"
            )

    def _own(self, made: Sequence[torch.Tensor], taken: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._copied is None:
            copied = _shared(made, taken)
            if any(not value.numel() for value in made):
                return [value.clone() if index in copied else value for index, value in enumerate(made)]
            self._copied = copied
        return [value.clone() if index in self._copied else value for index, value in enumerate(made)]


def _taker(parts: Parts) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
    """What makes the library's inputs of the graph's, prepared for what this graph has."""
    if parts.tensors == tuple(range(len(parts.classes))) and not parts.constants:
        return list
    pick, constants = picker(parts.tensors), parts.constants
    if not parts.numbers:
        return lambda inputs: [*pick(inputs), *constants]
    carrier = torch.empty(1, dtype=torch.uint8)
    sizes = picker(parts.numbers)
    return lambda inputs: [*pick(inputs), *map(carrier.expand, sizes(inputs)), *constants]


def _overlap_check(parts: Parts) -> OverlapCheck | None:
    if not parts.written:
        return None
    written = frozenset(parts.written)
    others = [index for index in parts.tensors if index not in written]
    return OverlapCheck(
        parts.written,
        [index for index in others if parts.classes[index] == STATE],
        [index for index in others if parts.classes[index] != STATE],
    )


def _shared(made: Sequence[torch.Tensor], taken: Sequence[torch.Tensor]) -> frozenset[int]:
    """Positions of the results that lie in the memory of an input or of an earlier result."""
    seen = {value.untyped_storage().data_ptr() for value in taken if value.numel()}
    found = set()
    for index, value in enumerate(made):
        address = value.untyped_storage().data_ptr()
        if value.numel() and address in seen:
            found.add(index)
        seen.add(address)
    return frozenset(found)


def _device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Where the library runs: the first accelerator that an input lies on."""
    return next((item.device for item in tensors if item.device.type != "cpu"), torch.device("cpu"))
