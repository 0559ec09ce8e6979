"""Calls of NumPy in a trace, which Dynamo has torch compute: refused where NumPy itself makes something else.

Each is made once more, by NumPy, on arrays of ones with the same layouts. Torch computes some in another
dtype, and makes copies of what NumPy makes views of, or the other way round, which counts where somebody
writes to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import torch
from torch._dynamo.utils import (
    numpy_attr_wrapper,
    numpy_method_wrapper,
    numpy_operator_wrapper,
    numpy_to_tensor_wrapper,
)
from torch._dynamo.variables.misc import get_tnp_to_np_map
from torch.fx.node import Node, map_arg
from torch.utils._pytree import tree_leaves

from warmrank.worker.errors import NotPortable

if TYPE_CHECKING:
    from torch.fx import GraphModule

_WRITING: Final = frozenset(
    {
        "setitem", "__setitem__", "fill", "itemset", "partition", "put", "resize", "sort", "copyto", "place",
        "fill_diagonal", "putmask", "put_along_axis",
        "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub",
        "itruediv", "ixor",
    }
)  # fmt: skip
_MAX_BYTES: Final = 1 << 26
"""Larger arrays are not made, and so not compared."""


class _NotMade(Exception):
    """There is no such array."""


def refuse_other_results(graph_module: GraphModule) -> None:
    """Raise `NotPortable` where NumPy's own result has another dtype, or shares memory otherwise."""
    nodes, arrays = graph_module.graph.nodes, _Arrays()
    calls = [(node, *call) for node in nodes if (call := _called(node)) is not None]
    if not calls:
        return
    writes = any(map(_writes, nodes))
    returned = tree_leaves([node.args for node in nodes if node.op == "output"])
    kept = {_storage(node.meta.get("example_value")) for node in returned if isinstance(node, Node)}
    for node, name, function in calls:
        try:
            args, kwargs = map_arg((node.args, node.kwargs), arrays.of_node)
            with np.errstate(all="ignore"):
                made = function(*args, **kwargs)
        except TypeError as error:
            _refuse(name, f"raises TypeError: {error}")
        except (ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError, _NotMade):  # of these values
            continue
        given = [array for array in tree_leaves([args, kwargs]) if isinstance(array, np.ndarray)]
        results = [value for value in tree_leaves(made) if isinstance(value, np.ndarray | np.generic)]
        traced = [it for it in tree_leaves(node.meta.get("example_value")) if isinstance(it, torch.Tensor)]
        for value, result in zip(traced, results, strict=False):
            if result.dtype.name != _dtype(value):
                _refuse(name, f"gives {result.dtype.name}, where torch gives {_dtype(value)}")
            shares = any(np.may_share_memory(result, array) for array in given)
            if (writes or _storage(value) in kept) and shares != arrays.lies_in(value, given):
                _refuse(name, f"makes a {'view' if shares else 'copy'}, where torch does not")


def _refuse(name: str, what: str) -> NoReturn:
    msg = f"NumPy's {name} {what}; compute that with torch, or outside of the cached function"
    raise NotPortable(msg, what=f"numpy.{name}")


def _called(node: Node) -> tuple[str, Callable[..., Any]] | None:
    """Name and function of a call of NumPy; None for all else."""
    target: Any = node.target
    if isinstance(target, numpy_to_tensor_wrapper):
        known: dict[Any, Any] = get_tnp_to_np_map()
        function = known.get(target.f)
        return None if function is None else (function.__name__, function)
    if isinstance(target, numpy_method_wrapper):
        return target.method, lambda array, *args, **kwargs: getattr(array, target.method)(*args, **kwargs)
    if isinstance(target, numpy_operator_wrapper):
        return target.op.__name__, target.op
    return ("attribute", getattr) if target is numpy_attr_wrapper else None


def _writes(node: Node) -> bool:
    """True if a node writes to an array or a tensor."""
    call = _called(node)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if call is not None:
        name = call[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return node.op.startswith("call") and (name in _WRITING or is_in_place or "out" in node.kwargs)


def _storage(value: Any) -> int:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


class _Arrays:
    """Arrays of ones in place of fake tensors; those of one storage share their memory."""

    def __init__(self) -> None:
        self._buffers: dict[int, np.ndarray[Any, Any]] = {}

    def of_node(self, node: Node) -> Any:
        """The array for a node's tensor; any other value as it is."""
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            return value
        try:
            dtype = np.dtype(_dtype(value))
        except TypeError:
            raise _NotMade from None
        size_bytes = _hint(value.untyped_storage().nbytes())
        if size_bytes > _MAX_BYTES:
            raise _NotMade
        buffer = self._buffers.get(_storage(value))
        if buffer is None:
            buffer = self._buffers[_storage(value)] = np.ones(-(-size_bytes // dtype.itemsize), dtype)
        strides = [_hint(stride) * dtype.itemsize for stride in value.stride()]
        offset = _hint(value.storage_offset()) * dtype.itemsize
        return np.ndarray([*map(_hint, value.shape)], dtype, buffer.view(np.uint8).data, offset, strides)

    def lies_in(self, value: torch.Tensor, arrays: list[np.ndarray[Any, Any]]) -> bool:
        """True if a tensor's storage is that of one of the arrays."""
        buffer = self._buffers.get(_storage(value))
        return buffer is not None and any(np.may_share_memory(buffer, array) for array in arrays)


def _hint(size: int | torch.SymInt) -> int:
    """A size, without a guard: of a symbolic one that of the traced call."""
    hint = size if isinstance(size, int) else size.node.hint
    if hint is None:
        raise _NotMade
    return int(hint)
