"""Device kind ``cpu``: a `CpuGraph` with the contract of the accelerators' graphs.

Inputs and outputs have fixed addresses, so a replay overwrites what the one before returned, as on the
device. Intermediate values come from torch's allocator on every replay; an arena that several graphs share
is what the memory reuse modes one and two will add.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from worker.devices import Pool, PoolHandle
from worker.devices.memory import memory_of

_NUMBERS = itertools.count(1)


class CpuPool:
    """Memory that graphs share: nothing yet."""

    size_bytes = 0


class CpuGraph:
    """A graph recorded on a CPU: the callable, its static inputs and its static outputs."""

    def __init__(
        self,
        graph: Callable[..., tuple[Any, ...]],
        inputs: Sequence[Any],
        copied: frozenset[int],
        aliased: frozenset[int],
    ) -> None:
        self._graph = graph
        self._inputs = tuple(
            _clone(value) if index in copied else value for index, value in enumerate(inputs)
        )
        self._outputs = tuple(graph(*self._inputs))
        self._copied = tuple(
            index
            for index, value in enumerate(self._outputs)
            if isinstance(value, torch.Tensor) and index not in aliased
        )

    @property
    def inputs(self) -> tuple[Any, ...]:
        """See `worker.devices.CapturedGraph.inputs`."""
        return self._inputs

    @property
    def outputs(self) -> tuple[Any, ...]:
        """See `worker.devices.CapturedGraph.outputs`."""
        return self._outputs

    @property
    def size_bytes(self) -> int:
        """See `worker.devices.CapturedGraph.size_bytes`."""
        return sum(self._outputs[index].nbytes for index in self._copied)

    def replay(self) -> None:
        """See `worker.devices.CapturedGraph.replay`."""
        produced = self._graph(*self._inputs)
        for index in self._copied:
            if produced[index].shape != self._outputs[index].shape:
                shapes = f"{tuple(self._outputs[index].shape)} -> {tuple(produced[index].shape)}"
                msg = f"output {index} of a captured graph changed its shape: {shapes}"
                raise RuntimeError(msg)  # copy_ would broadcast, and the result be wrong
            self._outputs[index].copy_(produced[index])


class CpuBackend:
    """The CPU as a device kind."""

    kind = "cpu"
    collectives = "gloo"

    def device(self, local_rank: int) -> torch.device:
        """See `worker.devices.DeviceBackend.device`; all ranks of a node share the CPU."""
        del local_rank
        return torch.device("cpu")

    def new_handle(self) -> PoolHandle:
        """See `worker.devices.DeviceBackend.new_handle`."""
        return (0, next(_NUMBERS))

    def pool(self, handle: PoolHandle | None = None) -> CpuPool:
        """See `worker.devices.DeviceBackend.pool`."""
        del handle
        return CpuPool()

    def capture(
        self,
        graph: Callable[..., tuple[Any, ...]],
        inputs: Sequence[Any],
        *,
        copied: frozenset[int],
        aliased: frozenset[int],
        pool: Pool,
    ) -> CpuGraph:
        """See `worker.devices.DeviceBackend.capture`."""
        del pool
        return CpuGraph(graph, inputs, copied, aliased)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, which the graph may rely on."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    memory_of(copy).copy_(memory_of(tensor))
    return copy
