"""Kernels on the CPU for operators of the NPU: what passes put into graphs of plain models, and a few more.

They compute what the documentation of torch_npu says, in the order of operations that the passes replace,
so that results are those of eager to the bit where a pass replaces plain operators. An argument that none
of them uses is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .native import NotEmulated

_TRANSPOSED = [1, 0, 2]


def rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.to(torch.float32)
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (gamma * (wide * rstd).to(x.dtype)).to(x.dtype), rstd


def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = x1 + x2
    return (*rms_norm(total, gamma, epsilon), total)


def add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, ...]:
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    return y.to(torch.float32, copy=True), y, rstd, total


def rotary_mul(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    _refuse_others("npu_rotary_mul", {"rotary_mode": rotary_mode, "rotate": rotate}, {"rotary_mode": "half"})
    middle = x.shape[-1] // 2
    turned = torch.cat((-x[..., middle:], x[..., :middle]), dim=-1)
    return (x * cos) + (turned * sin)


def transpose_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    perm_x1: list[int] | None = None,
    perm_x2: list[int] | None = None,
    perm_y: list[int] | None = None,
    **others: Any,
) -> torch.Tensor:
    _refuse_others("npu_transpose_batchmatmul", others, {"batch_split_factor": 1})
    left = x.permute(perm_x1) if perm_x1 else x
    right = weight.permute(perm_x2) if perm_x2 else weight
    return torch.bmm(left, right).permute(perm_y or _TRANSPOSED).contiguous()


def fusion_attention(  # noqa: PLR0917 - the operator's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    *given: Any,
    **others: Any,
) -> tuple[Any, ...]:
    del head_num, pre_tockens, next_tockens  # of the masks that sparse_mode makes, which is refused
    used = {"input_layout": input_layout, "pse": pse, "padding_mask": padding_mask, "keep_prob": keep_prob}
    plain = {"input_layout": "BNSD", "keep_prob": 1.0, "gen_mask_parallel": True, "softmax_layout": ""}
    _refuse_others("npu_fusion_attention", used | others, plain)
    if any(given):
        _refuse("npu_fusion_attention", "a later argument", given)
    scores = (torch.matmul(query, key.transpose(2, 3)) * scale).to(torch.float32)
    if atten_mask is not None:
        scores = scores.masked_fill(atten_mask.to(torch.bool), float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    total = torch.exp(scores - largest).sum(-1, keepdim=True)
    output = torch.matmul(torch.softmax(scores, -1).to(query.dtype), value)
    statistics = (largest.expand(*largest.shape[:-1], 8), total.expand(*total.shape[:-1], 8))
    return (output, *(item.contiguous() for item in statistics), query.new_empty(0), 0, 0, 0)


def dtype_cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype, copy=True)


def scatter_update_(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    for row, start in enumerate(indices.tolist()):
        target = x[row] if indices.dim() else x
        along = axis - 1 if axis > 0 else axis
        target.narrow(along, start, updates.shape[axis]).copy_(updates[row])
    return x


def scatter_nd_update_(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    x[tuple(indices.reshape(-1, indices.shape[-1]).t())] = updates.reshape(
        -1, *updates.shape[indices.dim() - 1 :]
    )
    return x


def swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, value = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * value


def _functional(in_place: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, *args: in_place(x.clone(), *args)


def _refuse_others(operator: str, given: dict[str, Any], allowed: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and value is not False and value != allowed.get(name, 0):
            _refuse(operator, name, value)


def _refuse(operator: str, argument: str, value: Any) -> NoReturn:
    msg = (
        f"the emulated NPU has no {operator} with {argument}={value!r}. Run this on an NPU, or leave out "
        "what needs it."
    )
    raise NotEmulated(msg)


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_rms_norm": rms_norm,
    "npu_add_rms_norm": add_rms_norm,
    "npu_add_rms_norm_cast": add_rms_norm_cast,
    "npu_rotary_mul": rotary_mul,
    "npu_transpose_batchmatmul": transpose_batchmatmul,
    "npu_fusion_attention": fusion_attention,
    "npu_dtype_cast": dtype_cast,
    "_npu_dtype_cast": dtype_cast,
    "npu_swiglu": swiglu,
    "scatter_update_": scatter_update_,
    "scatter_update": _functional(scatter_update_),
    "npu_scatter_nd_update_": scatter_nd_update_,
    "npu_scatter_nd_update": _functional(scatter_nd_update_),
}
"""Name in namespace ``npu`` -> kernel."""
