"""The state of the process that a trace depends on: read in a microsecond, compared by name.

Left out on purpose: the number of threads (it changes no result of the graph engine), the current device
index (the graph is relative to it), and grad and inference mode: a cached function is traced and runs without
gradients, whatever the caller's mode (`worker.runtime.check` refuses arguments that would record them).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private import warm

NAMES = (
    *warm.SETTING_NAMES,
    *warm.MODE_NAMES,
    "autocast accelerator",
    "autocast accelerator dtype",
    *warm.NPU_NAMES,
)
_OF_NPU = frozenset(warm.NPU_NAMES)
_ACCELERATOR = {"npu": "npu", "cuda": "cuda"}


def snapshot(device_kind: str) -> tuple[Any, ...]:
    """Values in the order of `NAMES`; hashable and comparable with ``==`` inside one process."""
    accelerator = _ACCELERATOR.get(device_kind)
    return (
        *warm.settings(),
        *warm.modes(),
        torch.is_autocast_enabled(accelerator) if accelerator else False,
        torch.get_autocast_dtype(accelerator) if accelerator else None,
        *(warm.npu_switches() if device_kind == "npu" else warm.NPU_NONE),
    )


def any_gears() -> bool:
    """True if a tensor of this process was ever given gears; imports nothing of them."""
    return bool(getattr(sys.modules.get("warmrank.worker.gears.model"), "in_use", ()))


def encode(values: tuple[Any, ...]) -> dict[str, str]:
    """A snapshot by name, as text.

    Raises:
        NotPortable: hooks, modes or kernels are active that another process, or a graph, cannot have.
    """
    named = _named(values)
    for name in ("global module hooks", "torch function modes", "kernels in Python"):
        if named[name] not in ("", "0"):
            msg = f"{named[name]} {name} are active while a cached function is traced; remove them first"
            raise NotPortable(msg, what=name)
    return named


def differences(traced: dict[str, str], values: tuple[Any, ...]) -> tuple[str, ...]:
    """Readable differences between a traced state and the present one; what is in neither is none."""
    present = _named(values)
    if present == traced:
        return ()
    return tuple(
        f"{name}: {traced.get(name)} -> {present.get(name)}"
        for name in NAMES
        if traced.get(name) != present.get(name)
    )


def _named(values: tuple[Any, ...]) -> dict[str, str]:
    """Name -> text, without torch_npu's switches where it is not there."""
    return {
        name: str(value)
        for name, value in zip(NAMES, values, strict=True)
        if value is not None or name not in _OF_NPU
    }
