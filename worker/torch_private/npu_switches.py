"""torch_npu's switches that choose kernels, read from the module that is loaded; nothing is imported.

Facts relied upon (torch_npu 2.13, ``npu_config.py``, ``npu/__init__.py`` and ``EnvVariables.cpp``):

* ``torch.npu.matmul.allow_hf32``, ``torch.npu.conv.allow_hf32``, ``torch.npu.config.allow_internal_format``,
  ``torch.npu.set_compile_mode`` and ``torch.npu.use_compatible_impl`` set options of ``torch_npu._C``;
* an option that was never set is None or empty. Then HF32 is off for matmul and on for convolutions; internal
  formats are off as soon as the device is initialised; the model of the NPU decides whether kernels are
  compiled;
* ``torch.npu._get_deterministic_level`` brings the level into line with torch's own switch, and stores it:
  here the same is computed, and nothing stored.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

NAMES = (
    "npu deterministic level",
    "npu hf32 matmul",
    "npu hf32 convolution",
    "npu internal format",
    "npu jit compile",
    "npu cube math type",
    "npu compatible implementation",
)
NONE = (None,) * len(NAMES)


def read() -> tuple[Any, ...]:
    """The switches in the order of `NAMES`; None for each where torch_npu is not loaded."""
    native = getattr(sys.modules.get("torch_npu"), "_C", None)
    if native is None:
        return NONE
    option = native._npu_getOption
    return (
        _deterministic_level(native),
        option("ALLOW_MATMUL_HF32") == b"enable",
        option("ALLOW_CONV_HF32") in (None, b"", b"enable"),
        option("ALLOW_INTERNAL_FORMAT") == b"enable",
        _text(option("jitCompile")) or "by model",
        _text(option("CUBE_MATH_TYPE")) or "default",
        option("TORCH_NPU_USE_COMPATIBLE_IMPL") == b"1",
    )


def _deterministic_level(native: Any) -> int:
    if not torch.are_deterministic_algorithms_enabled():
        return 0
    # Releases without levels have torch's switch only, which is level 1.
    level = getattr(native, "_npu_get_deterministic_level", None)
    return max(1, level()) if level is not None else 1


def _text(value: bytes | None) -> str:
    return value.decode() if value else ""
