"""Device kind ``cpu``: a `CpuGraph` with the contract of the accelerators' graphs.

Inputs and outputs have fixed addresses, so a replay overwrites what the one before returned, as on the
device. Intermediate values come from torch's allocator on every replay; an arena that several graphs share
is what the memory reuse modes one and two will add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class CpuGraph:
    """A graph recorded on a CPU: the callable, its static inputs and its static outputs."""

    def __init__(
        self, graph: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], aliased: frozenset[int]
    ) -> None:
        self._graph = graph
        self._inputs = tuple(inputs)
        self._outputs = tuple(graph(*self._inputs))
        self._copied = tuple(
            index
            for index, value in enumerate(self._outputs)
            if isinstance(value, torch.Tensor) and index not in aliased
        )

    @property
    def outputs(self) -> tuple[Any, ...]:
        """See `worker.devices.CapturedGraph.outputs`."""
        return self._outputs

    @property
    def pool_bytes(self) -> int:
        """See `worker.devices.CapturedGraph.pool_bytes`."""
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

    def capture(
        self, graph: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], aliased: frozenset[int]
    ) -> CpuGraph:
        """See `worker.devices.DeviceBackend.capture`."""
        return CpuGraph(graph, inputs, aliased)
