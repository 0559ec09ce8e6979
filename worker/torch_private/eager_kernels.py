"""Operators that run eager's kernel, because torch's own ways to compile them compute something else.

Relied on (``tests/integration/test_max_autotune.py``): ``py_kernels`` of an overload come before those of C++
in a trace, and what was found is kept in ``_dispatch_cache``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.torch_private.operators import argument_of
from warmrank.worker.torch_private.patching import replaced

if TYPE_CHECKING:
    from torch.fx import Node

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_BYTES = (torch.uint8, torch.int8)
LOSSES = (
    torch.ops.aten.multi_margin_loss.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,
)
NAMES = frozenset(
    {
        "add", "sub", "pow", "lerp", "xlogy", "special_xlog1py", "special_entr", "glu", "logit", "logsumexp",
        "mse_loss", "huber_loss", "smooth_l1_loss", "mvlgamma", "_log_softmax",
        "binary_cross_entropy_with_logits",
    }
)  # fmt: skip
"""Names of operators that Inductor rounds to 16 bits more or less often than eager's kernels do."""
_SUMS = ("add", "sub")  # with a factor
_EXTREMES = frozenset({"amin", "amax", "aminmax", "min", "max", "argmin", "argmax", "prod"})
_ROUNDED = frozenset({"floor_divide", "remainder", "fmod", "nextafter"})


def is_eagers(node: Node) -> bool:
    """True if an operator needs eager's kernel."""
    given, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda item: item.meta.get("val"))
    return (
        node.target is torch.ops.aten.fractional_max_pool3d.default  # takes its samples in another order
        or is_rounded(node)
        or _makes_something_of_nothing(node)
        or _finds_least_of_bools(node)
        or _reduces_bytes(node)
        or rounds_otherwise(node.target, given, named)
    )


def rounds_otherwise(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if an operator rounds to 16 bits more or less often in Inductor than in eager's kernel."""
    name = getattr(op, "_opname", "")
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if name not in NAMES or not any(value.dtype in SIXTEEN_BITS for value in given):
        return False
    if name == "pow":  # a square is one product
        return isinstance(args[1], torch.Tensor) or (isinstance(args[1], int | float) and args[1] != 2)
    factor = argument_of(op, args, kwargs, "alpha") if name in _SUMS else None
    return name not in _SUMS or (isinstance(factor, int | float) and factor != 1)


@contextlib.contextmanager
def losses_as_eager() -> Iterator[None]:
    """Keep losses one operator in any trace: torch's own forms count labels that are none, or check none."""
    key = torch._C.DispatchKey.Autograd
    with contextlib.ExitStack() as stack:
        for op in LOSSES:
            if key in op.py_kernels:
                stack.enter_context(replaced(op.py_kernels, key, _below_autograd(op)))
                stack.callback(op._dispatch_cache.clear)
                op._dispatch_cache.clear()
        yield


def _below_autograd(op: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return call


def is_rounded(node: Node) -> bool:
    """True if an operator makes rounded quotients, remainders, or neighbours of floats."""
    made, name = node.meta.get("val"), getattr(node.target, "_opname", "")
    is_floor = name == "div" and node.kwargs.get("rounding_mode") == "floor" and hasattr(node.args[0], "meta")
    return (name in _ROUNDED or is_floor) and isinstance(made, torch.Tensor) and made.is_floating_point()


def _makes_something_of_nothing(node: Node) -> bool:
    """True if all tensors that an operator takes are empty, and none that it returns is."""
    given = [item.meta.get("val") for item in node.all_input_nodes]
    made = node.meta.get("val")
    results = made if isinstance(made, list | tuple) else [made]
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and bool(given)
        and all(isinstance(value, torch.Tensor) and 0 in value.shape for value in given)
        and all(isinstance(value, torch.Tensor) and 0 not in value.shape for value in results)
    )


def _finds_least_of_bools(node: Node) -> bool:
    """True if an operator finds the places of the least bools along a dimension."""
    found = node.meta.get("val")
    return node.target is torch.ops.aten.min.dim and isinstance(found, tuple) and found[0].dtype == torch.bool


def _reduces_bytes(node: Node) -> bool:
    """True if an operator finds an extreme or product of bytes: Inductor's vectors hold zeros besides."""
    values = [item.meta.get("val") for item in (*node.all_input_nodes, node)]
    has_bytes = any(isinstance(value, torch.Tensor) and value.dtype in _BYTES for value in values)
    return getattr(node.target, "_opname", "") in _EXTREMES and has_bytes
