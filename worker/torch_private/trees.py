"""Nested arguments, taken apart as torch does it.

Relies on ``torch.utils._pytree.tree_leaves``, which knows the classes that others have registered there.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree


def leaves(values: Any) -> list[Any]:
    """What lies in containers, at any depth, in its order."""
    return _pytree.tree_leaves(values)
