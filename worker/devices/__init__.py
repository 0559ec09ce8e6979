"""Device kinds behind one port (`worker.devices.port`); one file per implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warmrank.worker.keys.environment import target
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.torch_private.places import Origin

KINDS = ("cpu", "cuda", "npu")

PoolHandle = tuple[Any, ...]


class CapturedGraph(Value):
    """One recorded graph with fixed addresses for its inputs and outputs.

    Attributes:
        inputs: what every replay reads: for the copied inputs buffers in the pool, else the given ones.
        outputs: the next replay of any graph of the same pool overwrites their memory.
        origins: of each output, the input or earlier output whose memory it lies in; None for its own.
        size_bytes: bytes of the pool that this graph uses, buffers included: what it would need alone.
        replay: runs the graph on what its inputs' memory now holds; no frame of ours around it.
        held: keeps the memory.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    origins: tuple[Origin | None, ...]
    size_bytes: int
    replay: Callable[[], None]
    held: tuple[object, ...]


def backend_for(kind: str) -> DeviceBackend:
    """The backend of a device kind.

    Raises:
        DeviceUnavailable: torch does not know the device kind here, or finds no such device; or nothing can
            be run on such devices.
    """
    if target() is not None:
        from warmrank.worker.devices.absent import AbsentBackend

        return AbsentBackend(kind)
    if kind == "cpu":
        from warmrank.worker.devices.cpu import CpuBackend

        return CpuBackend()
    if kind in KINDS:
        from warmrank.worker.devices.accelerator import accelerator

        return accelerator(kind)
    from warmrank.worker.errors import DeviceUnavailable

    msg = (
        f"there is no device kind {kind!r}; known kinds: {', '.join(KINDS)}. Move the model and its inputs "
        f"there before the first call (model.{'to_empty' if kind == 'meta' else 'to'}(device=...))."
    )
    raise DeviceUnavailable(msg, kind=kind)
