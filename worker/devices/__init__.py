"""Device kinds behind one port; one file per implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from worker.errors import NotYet

if TYPE_CHECKING:
    import torch

KINDS = ("cpu", "cuda", "npu")


class CapturedGraph(Protocol):
    """One recorded graph with fixed addresses for its inputs and outputs."""

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The outputs; the next replay overwrites their memory."""
        ...

    @property
    def pool_bytes(self) -> int:
        """Bytes that the graph holds for its outputs."""
        ...

    def replay(self) -> None:
        """Run the graph on what its inputs' memory now holds."""
        ...


class DeviceBackend(Protocol):
    """What the capture runtime and a rank need of a device kind."""

    kind: str
    collectives: str

    def device(self, local_rank: int) -> torch.device:
        """The device that a rank computes on."""
        ...

    def capture(
        self, graph: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], aliased: frozenset[int]
    ) -> CapturedGraph:
        """Record ``graph`` on ``inputs``.

        Args:
            graph: the callable to record.
            inputs: its inputs; their memory is what every replay reads and, where mutated, writes.
            aliased: positions of outputs that share memory with an input.
        """
        ...


def backend_for(kind: str) -> DeviceBackend:
    """The backend of a device kind.

    Raises:
        NotYet: the kind is known, but not built yet.
        ValueError: there is no such kind.
    """
    if kind == "cpu":
        from worker.devices.cpu import CpuBackend

        return CpuBackend()
    if kind in KINDS:
        raise NotYet(f"device kind {kind!r}", instead="use device kind 'cpu'")
    msg = f"there is no device kind {kind!r}; known kinds: {', '.join(KINDS)}"
    raise ValueError(msg)
