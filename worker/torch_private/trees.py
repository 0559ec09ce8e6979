"""Nested arguments, taken apart as torch does it.

Relies on ``tree_leaves``, ``tree_flatten``, ``tree_unflatten`` and ``tree_map_only`` of
``torch.utils._pytree``, which know the classes that others have registered there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree


def leaves(values: Any) -> list[Any]:
    """What lies in containers, at any depth, in its order."""
    return _pytree.tree_leaves(values)


def taken_apart(values: Any) -> tuple[list[Any], Any]:
    """What lies in containers, and the form to put it together again."""
    return _pytree.tree_flatten(values)


def put_together(items: list[Any], form: Any) -> Any:
    """The reverse of `taken_apart`."""
    return _pytree.tree_unflatten(items, form)


def with_tensors(function: Callable[[torch.Tensor], Any], values: Any) -> Any:
    """The same containers, each tensor in them replaced."""
    return _pytree.tree_map_only(torch.Tensor, function, values)
