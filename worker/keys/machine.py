"""Requirements of compiled kernels: a machine's instruction set, and the architecture of its GPUs.

Two machines with the same `instruction_set` text run each other's kernels.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from collections.abc import Callable
from typing import Any

from warmrank.worker.keys.request import features
from warmrank.worker.values import Value

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))
# What Inductor switches on beside the level where it finds it: torch 2.13, torch/_inductor/cpu_vec_isa.py.
_EXTRAS = ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16")


class InstructionSet(Value):
    """Instructions that kernels may use.

    Attributes:
        march: for the compiler's ``-march``; None where Inductor chooses.
        text: for the key.
    """

    march: str | None
    text: str


@functools.cache
def instruction_set() -> InstructionSet:
    """Instruction set of this machine."""
    machine, known = platform.machine(), frozenset(features())
    if machine not in ("x86_64", "AMD64"):
        digest = hashlib.sha256(" ".join(sorted(known)).encode()).hexdigest()[:16]
        return InstructionSet(march=None, text=f"{machine} {len(known)} features {digest}")
    level = next((name for name, needed in _LEVELS if needed <= known), "x86-64")
    extras = [name for name in _EXTRAS if name in known]
    return InstructionSet(march=level, text=" ".join([level, *extras]))


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
