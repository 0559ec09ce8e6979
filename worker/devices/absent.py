"""Device kinds of an offline build, whose devices are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warmrank.worker.devices import CpuBackend
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.torch_private.fake_ranks import fake_device

if TYPE_CHECKING:
    import torch

    from warmrank.worker.devices.port import CapturedGraph, Graph, Pool, Positions


class AbsentBackend(CpuBackend):
    """A device kind in an offline build: its devices are elsewhere, so nothing is captured or run.

    Functions are compiled and bound to it, which needs no device: its pools are the CPU's, and stay empty.
    """

    collectives = "fake"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; every rank of a launch sees its own as the first."""
        del local_rank
        return fake_device(self.kind)

    def capture(
        self, graph: Graph, inputs: Sequence[Any], *, copied: Positions, aliased: Positions, pool: Pool
    ) -> CapturedGraph:
        """Captures need the device: raises `DeviceUnavailable`."""
        del graph, inputs, copied, aliased, pool
        msg = f"an offline build has no device of kind {self.kind}, so it captures nothing; a launch does"
        raise DeviceUnavailable(msg, kind=self.kind)
