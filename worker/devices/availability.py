"""Whether an accelerator can be used in this process, and what is missing where it cannot."""

from __future__ import annotations

from typing import Any

import torch

from worker.errors import DeviceUnavailable

_DRIVERS = {
    "cuda": ("NVIDIA driver", "nvidia-smi", "CUDA_VISIBLE_DEVICES"),
    "npu": ("Ascend driver", "npu-smi info", "ASCEND_RT_VISIBLE_DEVICES"),
}


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
    if not module.is_available():
        driver, tool, variable = _DRIVERS[kind]
        msg = (
            f"device kind {kind}: torch finds no device; either the {driver} is missing (see {tool}), or "
            f"{variable} hides all devices from this process"
        )
        raise DeviceUnavailable(msg, kind=kind, missing=driver)
    return module


def _import_torch_npu() -> None:
    """It makes itself ``torch.npu``; where its autoload is switched off, nobody has done that before."""
    try:
        import torch_npu  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        msg = (
            f"device kind npu needs torch_npu on top of CANN, and it does not import: {error}. Install "
            "warmrank[npu] where CANN is, and source CANN's set_env.sh."
        )
        raise DeviceUnavailable(msg, kind="npu", missing="torch_npu") from error
