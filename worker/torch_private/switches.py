"""The getters under some properties of ``torch.backends``; a property costs up to twenty times its getter.

Facts relied upon (``tests/unit/test_ambient.py`` compares each with its property):

* ``torch.backends.mkldnn.enabled`` and ``.deterministic``, ``torch.backends.cuda.matmul.allow_tf32``,
  ``torch.backends.cudnn.allow_tf32`` and each ``fp32_precision`` return what these functions return;
* while the older three are at their defaults, so are the newer ones of cuBLAS, cuDNN and oneDNN's matrices;
  what is set for its convolutions and RNNs, their kernels read at each call;
* without a function mode on the stack there is no default device but the CPU: ``torch.set_default_device``
  and ``with torch.device(...)`` both push a mode, a ``DeviceContext``;
* transforms of ``torch.func`` are on a stack whose top `peek_interpreter_stack` returns, and a trace of
  ``torch.jit`` is what `_get_tracing_state` returns, or None;
* hooks of all modules stand in dictionaries of ``torch.nn.modules.module`` that stay the same objects;
* ``torch.library._impls`` holds a name for each kernel that Python registered, as ``aten/sin/CPU``.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.library
from torch.autograd import forward_ad
from torch.nn.modules import module as module_hooks
from torch.utils._device import DeviceContext

FACTS = {"torch._C": "_get_fp32_precision_getter _get_cublas_allow_fp16_accumulation _get_cudnn_sdp_enabled"}
_KEYS_OF_ALL = ("CPU", "AutogradCPU", "Autograd", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
_GLOBAL_HOOKS = (
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_backward_hooks,
    module_hooks._global_backward_pre_hooks,
)
mkldnn_enabled = torch._C._get_mkldnn_enabled
mkldnn_deterministic = torch._C._get_mkldnn_deterministic
flash_attention = torch._C._get_flash_sdp_enabled
memory_efficient_attention = torch._C._get_mem_efficient_sdp_enabled
math_attention = torch._C._get_math_sdp_enabled
cudnn_switches = (
    torch._C._get_cudnn_enabled,
    torch._C._get_cudnn_deterministic,
    torch._C._get_cudnn_benchmark,
    torch._C._get_cudnn_sdp_enabled,
)
"""``enabled``, ``deterministic`` and ``benchmark`` of ``torch.backends.cudnn``; attention by cuDNN."""

cublas_switches = (
    torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    torch._C._get_cublas_allow_fp16_accumulation,
)
"""Of ``torch.backends.cuda.matmul``; the first two give a pair: in general, and with split k."""

function_overrides = torch._C._is_torch_function_enabled
num_function_modes = torch._C._len_torch_function_stack


_OLDER_DEFAULTS = "highest", False, True
_LIBRARIES = tuple(
    (library, operators)
    for library in ("generic", "cuda", "mkldnn")
    for operators in (("all",) if library == "generic" else ("all", "matmul", "conv", "rnn"))
)


def float32_precision() -> tuple[Any, ...]:
    """What older switches say (matrices, cuBLAS, cuDNN); then the newer ones, unless the older tell all."""
    try:
        older: tuple[Any, ...] = (
            torch.get_float32_matmul_precision(),
            torch._C._get_cublas_allow_tf32(),
            torch._C._get_cudnn_allow_tf32(),
        )
    except RuntimeError:  # somebody set ``fp32_precision``, to what these have no word for
        older = ("mixed",) * len(_OLDER_DEFAULTS)
    if older == _OLDER_DEFAULTS:
        return (*older, "")
    return (*older, " ".join(torch._C._get_fp32_precision_getter(*of) for of in _LIBRARIES))


def default_device_type() -> str:
    """Type of the device on which a tensor is made that does not say where."""
    return torch.get_default_device().type if num_function_modes() else "cpu"


def num_global_hooks() -> int:
    """Number of hooks that are called for every module."""
    return sum(map(len, _GLOBAL_HOOKS))


def kernels_in_python() -> str:
    """Operators of torch's own that somebody gave a kernel in Python, for CPUs or all devices."""
    return _kernels_in_python(len(torch.library._impls))


@functools.lru_cache(maxsize=1)
def _kernels_in_python(num: int) -> str:
    del num  # whether there are others by now is told by their number
    found = (name.split("/") for name in torch.library._impls if name.startswith("aten/"))
    return " ".join(sorted(name for _, name, key in found if key in _KEYS_OF_ALL))


def foreign_function_modes() -> int:
    """Number of active torch function modes, without those that set a default device."""
    count = num_function_modes()
    if not count:
        return 0
    modes = [torch._C._get_function_stack_at(index) for index in range(count)]
    return sum(not isinstance(mode, DeviceContext) for mode in modes)


def is_followed() -> bool:
    """Whether something else follows the operators of a call: a trace, a transform, or a dispatch mode."""
    return (
        torch.compiler.is_compiling()  # first, because Dynamo inlines this
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def is_symbolic_trace() -> bool:
    """Whether ``torch.fx`` traces symbolically: then arguments are no tensors, so no artifact fits."""
    tracer = sys.modules.get("torch.fx._symbolic_trace")
    return tracer is not None and bool(tracer.is_fx_symbolic_tracing())
