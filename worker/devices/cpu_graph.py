"""A captured graph on the CPU; imported with the first capture, which a process that only loads never makes.

A recording of one run says which kernels the graph calls on which memory (`worker.torch_private.recording`).
All that the run allocated gets a place in the work region of a pool (`worker.devices.memory`), and a
replay calls the same kernels on these fixed addresses: no Python of the graph, no views, no allocator. As on
a device, outputs hold nothing before the first replay, and every replay in the pool may overwrite them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from warmrank.worker import collection
from warmrank.worker.devices.cpu_graph import Program, program
from warmrank.worker.devices.memory import ArenaPool, buffers
from warmrank.worker.torch_private.kernels import run
from warmrank.worker.torch_private.places import Origin, check
from warmrank.worker.torch_private.recording import record


class CpuGraph:
    """A graph recorded on a CPU: its calls, with all that they read and write."""

    def __init__(self, inputs: tuple[Any, ...], program: Program, held: tuple[Any, ...], size: int) -> None:
        self._inputs = inputs
        self._outputs = program.outputs
        self._origins = program.origins
        self._calls = program.calls
        self._held = held
        self._size_bytes = size

    @property
    def inputs(self) -> tuple[Any, ...]:
        """See `worker.devices.CapturedGraph.inputs`."""
        return self._inputs

    @property
    def outputs(self) -> tuple[Any, ...]:
        """See `worker.devices.CapturedGraph.outputs`."""
        return self._outputs

    @property
    def origins(self) -> tuple[Origin | None, ...]:
        """See `worker.devices.CapturedGraph.origins`."""
        return self._origins

    @property
    def size_bytes(self) -> int:
        """See `worker.devices.CapturedGraph.size_bytes`."""
        return self._size_bytes

    def replay(self) -> None:
        """See `worker.devices.CapturedGraph.replay`."""
        run(self._calls)


def captured(
    graph: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], *, copied: frozenset[int], pool: ArenaPool
) -> CpuGraph:
    """Record ``graph`` on ``inputs``; see `worker.devices.DeviceBackend.capture`."""
    for value in inputs:
        if isinstance(value, torch.Tensor):
            check(value)
    # Out of inference mode, so that what is made here can be written in and out of it.
    with collection.paused(), torch.inference_mode(mode=False), torch.no_grad():
        given = buffers(pool, inputs, copied)
        recording = record(graph, given.values, copied)
        made = program(recording, copied=copied, region=pool.work)
    held = (pool, given.segment, made.segment)
    return CpuGraph(given.values, made, held, given.size_bytes + made.size_bytes)
