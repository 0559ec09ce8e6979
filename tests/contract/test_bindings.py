"""Every row of `worker.engines.graph` reaches the overload that it stands for, with equal results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warmrank.worker.engines.graph import BINDINGS

_A = torch.linspace(-2.0, 2.0, 24).reshape(2, 3, 4)
_B = torch.linspace(1.0, 3.0, 24).reshape(2, 3, 4)
_M = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
_N = torch.linspace(-1.0, 1.0, 8).reshape(4, 2)
_I = torch.tensor([1, 0])
_W = torch.linspace(0.5, 1.5, 4)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "pow.Tensor_Scalar": (_B, 2),
    "mean.dim": (_A, [-1], True),
    "sum.dim_IntList": (_A, [0, 2], False),
    "softmax.int": (_A, -1),
    "matmul.default": (_M, _N),
    "mm.default": (_M, _N),
    "bmm.default": (_A, _B.transpose(1, 2)),
    "addmm.default": (torch.ones(3, 2), _M, _N),
    "reshape.default": (_A, [6, -1]),
    "transpose.int": (_A, 0, 2),
    "permute.default": (_A, [2, 0, 1]),
    "unsqueeze.default": (_A, 1),
    "squeeze.dim": (_A[:, :1], 1),
    "select.int": (_A, 1, 2),
    "index_select.default": (_A, 1, _I),
    "gather.default": (_M, 1, torch.tensor([[0, 1], [2, 3], [1, 1]])),
    "cat.default": ([_A, _B], 1),
    "stack.default": ([_A, _B], 2),
    "chunk.default": (_A, 2, -1),
    "unbind.int": (_A, 1),
    "where.self": (_A > 0, _A, _B),
    "masked_fill.Scalar": (_A, _A > 0, 7.0),
    "embedding.default": (_M, _I, -1, False, False),
    "layer_norm.default": (_A, [4], _W, _W, 1e-5),
    "rms_norm.default": (_A, [4], _W, 1e-5),
    "bitwise_and.Tensor": (_A > 0, _B > 2),
    "logical_not.default": (_A > 0,),
    "view.default": (_A, [2, 12]),
    "expand.default": (_A[:, :1], [2, 3, 4]),
    "index_copy_.default": (_M.clone(), 0, _I, torch.zeros(2, 4)),
    "to.dtype": (_A, torch.float64),
    "linear.default": (_A, torch.ones(5, 4), torch.ones(5)),
    "scaled_dot_product_attention.default": (_A, _B, _A),
}
_UNARY = {
    "neg",
    "rsqrt",
    "sqrt",
    "exp",
    "cos",
    "sin",
    "tanh",
    "sigmoid",
    "relu",
    "contiguous",
    "detach",
    "gelu",
    "silu",
}


class Recorder(TorchDispatchMode):
    """Records the overloads that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _arguments(path: str) -> tuple[Any, ...]:
    name = path.removeprefix("torch.ops.aten.")
    base, _, overload = name.partition(".")
    if name in _ARGUMENTS:
        return _ARGUMENTS[name]
    if base in _UNARY or name == "sum.default":
        return (_B,)
    if base.endswith("_"):
        return (_A.clone(), _B)
    return (_A, 0.5 if overload == "Scalar" else _B)


def _run(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, list[str]]:
    copies = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in arguments)
    with torch.no_grad(), Recorder() as recorder:
        result = function(*copies)
    return result, recorder.seen


def _resolve(path: str) -> Any:
    value: Any = torch
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("path", sorted(BINDINGS))
def test_binding_reaches_the_same_overload(path: str) -> None:
    arguments = _arguments(path)
    wanted, wanted_operators = _run(_resolve(path), arguments)
    got, got_operators = _run(_resolve(BINDINGS[path]), arguments)
    assert got_operators == wanted_operators
    for ours, theirs in zip(_leaves(got), _leaves(wanted), strict=True):
        assert torch.equal(ours, theirs)


def test_binding_takes_a_number_where_the_schema_has_a_tensor() -> None:
    for name in ("add", "sub", "mul", "div"):
        path = f"torch.ops.aten.{name}.Tensor"
        wanted, wanted_operators = _run(_resolve(path), (_A, 2))
        got, got_operators = _run(_resolve(BINDINGS[path]), (_A, 2))
        assert got_operators == wanted_operators
        assert torch.equal(got, wanted)


def _leaves(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, list | tuple) else [value]
