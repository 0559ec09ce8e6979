"""Models and architectures of this machine's GPUs, asked of NVIDIA's management library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


def architectures(load: Callable[[str], Any] = ctypes.CDLL) -> tuple[str, ...]:
    """Each model on this machine once, with its architecture: ``NVIDIA H100 80GB HBM3 sm_90``.

    Empty where there is no driver, or it does not answer.
    """
    try:
        library = load(_LIBRARY)
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
    name = ctypes.create_string_buffer(_NAME_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        or library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES))
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    return "" if failed else f"{name.value.decode(errors='replace')} sm_{major.value}{minor.value}"
