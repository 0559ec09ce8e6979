"""A device kind in an offline build: its devices are elsewhere, so nothing is captured or run.

Functions are compiled and bound to it, which needs no device: pools stay empty until a graph is captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warmrank.worker.devices.port import CapturedGraph, Pool, PoolHandle
from warmrank.worker.errors import DeviceUnavailable

if TYPE_CHECKING:
    import torch

_HANDLES = itertools.count(1)


class AbsentPool:
    """A pool of a device that is not here."""

    size_bytes = 0


class AbsentBackend:
    """`DeviceBackend` of the machines that an offline build is for."""

    collectives = "fake"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; every rank of a launch sees its own as the first."""
        from warmrank.worker.torch_private.fake_ranks import fake_device

        del local_rank
        return fake_device(self.kind)

    def new_handle(self) -> PoolHandle:
        """See `DeviceBackend.new_handle`."""
        return (0, next(_HANDLES))

    def pool(self, handle: PoolHandle | None = None) -> Pool:
        """See `DeviceBackend.pool`."""
        del handle
        return AbsentPool()

    def capture(
        self,
        graph: Callable[..., tuple[Any, ...]],
        inputs: Sequence[Any],
        *,
        copied: frozenset[int],
        aliased: frozenset[int],
        pool: Pool,
    ) -> CapturedGraph:
        """Captures need the device.

        Raises:
            DeviceUnavailable: always.
        """
        del graph, inputs, copied, aliased, pool
        msg = f"an offline build has no device of kind {self.kind}, so it captures nothing; a launch does"
        raise DeviceUnavailable(msg, kind=self.kind)
