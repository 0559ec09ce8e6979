"""Which nodes are seeded together, from where, and when a failed one is tried again: pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.options import FanOut

MIN_FAN_OUT = 8
"""Nodes at once from which a shared store is taken for the bottleneck, unless somebody says otherwise."""
MIN_SOURCES = 4
"""Of seeded nodes, at least so many serve where there are as many, and no more than are to be seeded."""
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Nodes that are seeded together.

    Attributes:
        nodes: those.
        sources: nodes that pass blobs on, each its share: they read it from the store for all, or have it.
            None where all get everything from the store.
    """

    nodes: tuple[Node, ...]
    sources: tuple[Node, ...] = ()


def plan_wave(due: Sequence[Node], seeded: Sequence[Node], fan_out: FanOut) -> Wave:
    """How to seed the nodes that are due.

    Nodes that are seeded already are better sources than those that would have to read the store.

    Args:
        due: the nodes to seed, at least one.
        seeded: nodes that have everything.
        fan_out: what was asked for.
    """
    if fan_out == "never" or (fan_out == "auto" and len(due) < MIN_FAN_OUT):
        return Wave(nodes=tuple(due))
    if seeded:
        return Wave(nodes=tuple(due), sources=tuple(seeded[: max(MIN_SOURCES, len(due))]))
    return Wave(nodes=tuple(due), sources=tuple(due) if len(due) > 1 else ())


def retry_in_s(num_attempts: int) -> float:
    """Seconds from the end of an attempt that failed, or found nothing, to the next one."""
    doublings = min(num_attempts - 1, 16)  # beyond that the longest holds anyway
    return float(min(FIRST_RETRY_S * 2**doublings, LONGEST_RETRY_S))
