"""Operators that draw random numbers: refused, or with ``rng="allow"`` kept, on the graph's own device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.device_kinds import kind_of
from warmrank.worker.errors import RandomOp
from warmrank.worker.torch_private.recording import draws_nothing

if TYPE_CHECKING:
    from torch.fx import Node


def draws(node: Node) -> bool:
    """Whether an operator draws random numbers; not if told not to: probability zero, or not training."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return not draws_nothing(node.target, node.args, node.kwargs)


def check(node: Node, allowed_on: str) -> None:
    """Refuse an operator that draws random numbers, naming it and its line.

    Args:
        node: the operator's call.
        allowed_on: kind of the device on which numbers may be drawn; empty: nowhere. What is drawn on
            another device than the graph's would be drawn once, while it is captured.

    Raises:
        RandomOp: it may not be drawn here.
    """
    if allowed_on and allowed_on in _kinds(node.meta.get("val")):
        return
    where = (node.stack_trace or "").strip() or "unknown line"
    if allowed_on:
        msg = (
            f"operator {node.target} draws random numbers on another device than {allowed_on}, which a "
            f"captured graph would repeat:\n{where}\nDraw them on {allowed_on}."
        )
    else:
        msg = (
            f"operator {node.target} draws random numbers, which a cached graph does not support:\n{where}\n"
            'Move it out of the cached function, pass rng="allow", or (dropout) call eval() on the module.'
        )
    raise RandomOp(msg, operator=str(node.target), where=where)


def _kinds(value: Any) -> set[str]:
    """Kinds of the devices that results lie on."""
    items = value if isinstance(value, list | tuple) else (value,)
    return {kind_of(item.device.type) for item in items if isinstance(item, torch.Tensor)}
