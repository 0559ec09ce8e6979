"""The port of a device kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from warmrank.worker.devices import CapturedGraph, CpuBackend, Graph, PoolHandle, Positions
from warmrank.worker.errors import DeviceUnavailable

if TYPE_CHECKING:
    import torch


class Pool(Protocol):
    """Memory that captured graphs share: a replay of one may overwrite what another one returned."""

    @property
    def size_bytes(self) -> int:
        """Bytes that the pool holds."""


class DeviceBackend(Protocol):
    """Port of a device kind, as the capture runtime and a rank use it."""

    kind: str
    collectives: str
    # A capture runs the graph, once, as a call does; else only to warm it up.
    runs_captures: bool

    def device(self, local_rank: int) -> torch.device:
        """The device that a rank computes on."""

    def new_handle(self) -> PoolHandle:
        """A handle that no pool has yet; what ``graph_pool_handle()`` returns."""

    def pool(self, handle: PoolHandle | None = None) -> Pool:
        """The pool with this handle, for all who ask with it; without one, a pool of its own."""

    def capture(
        self,
        graph: Graph,
        inputs: Sequence[Any],
        *,
        copied: Positions,
        aliased: Positions,
        pool: Pool,
        warm_up: bool = True,
    ) -> CapturedGraph:
        """Record ``graph``; without ``warm_up`` it ran for these shapes.

        With ``runs_captures`` it runs once: outputs hold what it returned, mutated inputs what it wrote. Else
        it runs to warm up, or not at all, as other ranks, to which it may send, need not capture just now. No
        memory that the recording takes out of the pool overlaps with ``inputs``, although those may lie in
        the pool (an output of an earlier replay).

        Inputs at the positions ``copied`` get a buffer in the pool, filled with the given values; outputs at
        ``aliased`` share memory with an input that is not copied. All else lies in the pool.

        Raises:
            NotCapturable: the graph does something that cannot be recorded; the message names the operator.
        """


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
        from warmrank.worker.torch_private.fake_ranks import fake_device

        return fake_device(self.kind)

    def capture(self, *_: Any, **__: Any) -> CapturedGraph:
        """Captures need the device: raises `DeviceUnavailable`."""
        msg = f"an offline build has no device of kind {self.kind}, so it captures nothing; a launch does"
        raise DeviceUnavailable(msg, kind=self.kind)
