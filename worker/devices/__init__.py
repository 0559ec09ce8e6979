"""Device kinds behind one port (`worker.devices.port`); one file per implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmrank.worker.settings import target

if TYPE_CHECKING:
    from warmrank.worker.devices.port import DeviceBackend

KINDS = ("cpu", "cuda", "npu")


def backend_for(kind: str) -> DeviceBackend:
    """The backend of a device kind.

    Raises `DeviceUnavailable`: torch does not know the device kind here, or finds no such device; or nothing
    can be run on such devices.
    """
    if target() is not None:
        from warmrank.worker.devices.cpu import AbsentBackend

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
