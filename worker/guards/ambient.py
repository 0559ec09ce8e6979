"""The state of the process that a trace depends on: read in a microsecond, compared by name.

Left out on purpose: the number of threads (it changes no result of the graph engine), the current device
index (the graph is relative to it), and inference mode (it changes how tensors are tracked, not values).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.utils._device import DeviceContext

from worker.errors import NotPortable

NAMES = (
    "grad mode",
    "default dtype",
    "default device",
    "deterministic algorithms",
    "deterministic warn only",
    "fill uninitialized memory",
    "float32 matmul precision",
    "autocast cpu",
    "autocast cpu dtype",
    "autocast accelerator",
    "autocast accelerator dtype",
    "tf32 matmul",
    "tf32 cudnn",
    "flash attention",
    "memory-efficient attention",
    "math attention",
    "mkldnn",
    "mkldnn deterministic",
    "global module hooks",
    "torch function modes",
)

_HOOKS = tuple(
    getattr(module_hooks, name)
    for name in (
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
    )
)
_ACCELERATOR = {"npu": "npu", "cuda": "cuda"}


def snapshot(device_kind: str) -> tuple[Any, ...]:
    """Values in the order of `NAMES`; hashable and comparable with ``==`` inside one process."""
    accelerator = _ACCELERATOR.get(device_kind)
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device().type,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled(accelerator) if accelerator else False,
        torch.get_autocast_dtype(accelerator) if accelerator else None,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
        torch.backends.mkldnn.enabled,
        torch.backends.mkldnn.deterministic,
        sum(map(len, _HOOKS)),
        _foreign_modes(),
    )


def _foreign_modes() -> int:
    """Number of active torch function modes, without that of the default device, which has a name above."""
    from torch import _C

    count = _C._len_torch_function_stack()  # noqa: SLF001 - no public reader exists
    if not count:
        return 0
    modes = [_C._get_function_stack_at(index) for index in range(count)]  # noqa: SLF001 - likewise
    return sum(not isinstance(mode, DeviceContext) for mode in modes)


def encode(values: tuple[Any, ...]) -> dict[str, str]:
    """A snapshot by name, as text.

    Raises:
        NotPortable: hooks or modes are active that another process cannot have.
    """
    named = {name: str(value) for name, value in zip(NAMES, values, strict=True)}
    for name in ("global module hooks", "torch function modes"):
        if named[name] != "0":
            msg = f"{named[name]} {name} are active while a cached function is traced; remove them first"
            raise NotPortable(msg, what=name)
    return named


def differences(traced: dict[str, str], values: tuple[Any, ...]) -> tuple[str, ...]:
    """Readable differences between a traced state and the present one."""
    present = {name: str(value) for name, value in zip(NAMES, values, strict=True)}
    return tuple(
        f"{name}: {traced.get(name)} -> {present[name]}"
        for name in NAMES
        if traced.get(name) != present[name]
    )
