"""Whether an accelerator can be used in this process, and what is missing where it cannot."""

from __future__ import annotations

from typing import Any

import torch

from warmrank.worker.ascend.chips import device_numbers, visible_devices
from warmrank.worker.ascend.places import here
from warmrank.worker.ascend.versions import cann_of, driver_of
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import settings


def device_module(kind: str) -> Any:
    """``torch.cuda`` or ``torch.npu``, with at least one device.

    Raises:
        DeviceUnavailable: torch is built without it, torch_npu does not import, or there is no device.
    """
    if kind == "npu":
        _import_torch_npu()
    elif torch.version.cuda is None:
        msg = (
            f"device kind cuda needs a torch with CUDA; torch {torch.__version__} is built without. "
            "Install a CUDA build of the same version."
        )
        raise DeviceUnavailable(msg, kind=kind, missing="torch with CUDA")
    module = torch.get_device_module(kind)
    if kind == "npu":
        check_visible()
    if not module.is_available():
        raise _no_device(kind)
    return module


def check_visible() -> None:
    """Refuse an ``ASCEND_RT_VISIBLE_DEVICES`` that CANN would cut short in silence.

    Without device files the check is left out: NPUs may be reached in ways that are not known here.

    Raises:
        DeviceUnavailable: the variable is no list of NPUs that are there, or hides them all.
    """
    num_devices = len(device_numbers(here()))
    if num_devices and not visible_devices(settings().ascend, num_devices):
        msg = (
            f"ASCEND_RT_VISIBLE_DEVICES hides all {num_devices} NPUs of this machine from this process. In a "
            "launch Ray sets it for each rank: ask for a NPU each (device: npu); elsewhere unset it."
        )
        raise DeviceUnavailable(msg, kind="npu", num_devices=num_devices)


def _no_device(kind: str) -> DeviceUnavailable:
    driver, tool, variable = {
        "cuda": ("NVIDIA driver", "nvidia-smi", "CUDA_VISIBLE_DEVICES"),
        "npu": ("Ascend driver", "npu-smi info", "ASCEND_RT_VISIBLE_DEVICES"),
    }[kind]
    seen = f" ({_seen()})" if kind == "npu" else ""
    msg = (
        f"device kind {kind}: torch finds no device{seen}; either the {driver} is missing (see {tool}), or "
        f"{variable} hides all devices from this process"
    )
    return DeviceUnavailable(msg, kind=kind, missing=driver)


def _import_torch_npu() -> None:
    """It makes itself ``torch.npu``; where its autoload is switched off, nobody has done that before."""
    try:
        import torch_npu  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        msg = (
            f"device kind npu needs torch_npu on top of CANN, and it does not import: {error}. Install "
            f"warmrank[npu] where CANN is, and source CANN's set_env.sh. Seen here: {_seen()}."
        )
        raise DeviceUnavailable(msg, kind="npu", missing="torch_npu") from error


def _seen() -> str:
    """What of Ascend is on this machine, in a line."""
    places = here()
    cann = cann_of(places)
    return ", ".join(
        (
            f"CANN {cann.release} in {cann.home}" if cann.release else "no CANN",
            f"driver {driver_of(places)}" if driver_of(places) else "no driver",
            f"{len(device_numbers(places))} files /dev/davinci<N>",
        )
    )
