"""NVIDIA on this machine: the driver's version, and the models of the GPUs with their architectures.

Where the driver's library does not answer, the driver's files in ``/proc/driver/nvidia`` name the models.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any


def driver_in(proc: Path) -> str:
    """The driver's version, as its files say; empty for none."""
    return _field(proc / "version", r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)")


def gpus_in(proc: Path) -> str:
    """Models of the GPUs, with their architecture."""
    models = {_field(path / "information", r"Model:\s*(.+)") for path in sorted(proc.glob("gpus/*"))}
    return ", ".join(architectures() or sorted(model.strip() for model in models if model))


def architectures() -> tuple[str, ...]:
    """Each model of NVIDIA's on this machine once, with its architecture: ``NVIDIA H100 80GB HBM3 sm_90``.

    Empty where there is no driver, or it does not answer.
    """
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ()
    if library.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        found = {_architecture(library, index) for index in range(count.value)}
    finally:
        library.nvmlShutdown()
    return tuple(sorted(found - {""}))


def _architecture(library: Any, index: int) -> str:
    handle = ctypes.c_void_p()
    name = ctypes.create_string_buffer(96)  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        or library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96))
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    return "" if failed else f"{name.value.decode(errors='replace')} sm_{major.value}{minor.value}"


def _field(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(errors="replace"))
    except OSError:
        return ""
    return match.group(1) if match else ""
