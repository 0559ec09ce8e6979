"""Which nodes are seeded together, from where, and when a failed one is tried again: pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.seed.nodes import Node
from orchestrator.seed.options import FanOut

MIN_FAN_OUT = 8
"""Nodes at once from which a shared store is taken for the bottleneck, unless somebody says otherwise."""
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Nodes that are seeded together.

    Attributes:
        source: node that reads the store, if it has to, before the others get all from it; None for none.
        others: the nodes that get their bytes from it, or, without one, from the store.
    """

    source: Node | None
    others: tuple[Node, ...]


def plan_wave(due: Sequence[Node], seeded: Sequence[Node], fan_out: FanOut) -> Wave:
    """How to seed the nodes that are due.

    A node that is seeded already is a better source than one that would have to read the store first.

    Args:
        due: the nodes to seed, at least one.
        seeded: nodes that have everything.
        fan_out: what was asked for.
    """
    if fan_out == "never" or (fan_out == "auto" and len(due) < MIN_FAN_OUT):
        return Wave(source=None, others=tuple(due))
    if seeded:
        return Wave(source=seeded[0], others=tuple(due))
    first, *others = due
    return Wave(source=first, others=tuple(others)) if others else Wave(source=None, others=(first,))


def retry_in_s(num_attempts: int) -> float:
    """Seconds from the end of an attempt that failed, or found nothing, to the next one."""
    doublings = min(num_attempts - 1, 16)  # beyond that the longest holds anyway
    return float(min(FIRST_RETRY_S * 2**doublings, LONGEST_RETRY_S))
