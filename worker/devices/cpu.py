"""Device kind ``cpu``: graphs that keep the contract of the accelerators; see `worker.devices.cpu_graph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from warmrank.worker.devices.arena import ArenaPool
    from warmrank.worker.devices.port import CapturedGraph, Graph, Pool, PoolHandle, Positions


class CpuBackend:
    """The CPU as a device kind."""

    kind = "cpu"
    collectives = "gloo"

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; all ranks of a node share the CPU."""
        del local_rank
        return torch.device("cpu")

    def new_handle(self) -> PoolHandle:
        """See `DeviceBackend.new_handle`."""
        from warmrank.worker.devices.arena import new_handle

        return new_handle()

    def pool(self, handle: PoolHandle | None = None) -> ArenaPool:
        """See `DeviceBackend.pool`."""
        from warmrank.worker.devices.arena import pool_of

        return pool_of(handle)

    def capture(
        self, graph: Graph, inputs: Sequence[Any], *, copied: Positions, aliased: Positions, pool: Pool
    ) -> CapturedGraph:
        """See `DeviceBackend.capture`; which outputs share memory is seen in the recording."""
        del aliased
        from warmrank.worker.devices.arena import ArenaPool

        if not isinstance(pool, ArenaPool):
            msg = f"a CPU graph needs a pool of the CPU backend; got a {type(pool).__qualname__}"
            raise TypeError(msg)
        from warmrank.worker.devices.cpu_graph import captured

        return captured(graph, inputs, copied=copied, pool=pool)


class AbsentBackend(CpuBackend):
    """A device kind in an offline build: its devices are elsewhere, so nothing is captured or run.

    Functions are compiled and bound to it, which needs no device: its pools are the CPU's, and stay empty.
    """

    collectives = "fake"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; every rank of a launch sees its own as the first."""
        from warmrank.worker.torch_private.fake_ranks import fake_device

        del local_rank
        return fake_device(self.kind)

    def capture(
        self, graph: Graph, inputs: Sequence[Any], *, copied: Positions, aliased: Positions, pool: Pool
    ) -> CapturedGraph:
        """Captures need the device: raises `DeviceUnavailable`."""
        from warmrank.worker.errors import DeviceUnavailable

        del graph, inputs, copied, aliased, pool
        msg = f"an offline build has no device of kind {self.kind}, so it captures nothing; a launch does"
        raise DeviceUnavailable(msg, kind=self.kind)
