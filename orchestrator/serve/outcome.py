"""How a command is run, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from warmrank.orchestrator.serve.readiness import When
from warmrank.orchestrator.serve.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a command is run.

    Attributes:
        here: on this node only, without Ray.
        nodes: names of the nodes; none for as many as the ranks need.
        replicate: each node runs a world of its own.
        when: what the command added is published.
        grace_s: seconds from SIGTERM to SIGKILL.
        world: the hosts that each run this, without Ray; None for this one alone.
    """

    here: bool
    nodes: tuple[str, ...]
    replicate: bool
    when: When
    grace_s: float
    world: World | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """What became of the command on one node; the status is None where the node was lost."""

    host: str
    address: str
    world: int
    node_rank: int
    found: bool
    status: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the command.

    Attributes:
        exit_code: what this command ends with.
        nodes: each node.
        record: key of the launch record that was committed; empty for none.
        problems: what went wrong with caches and store.
        seconds: from the command's start to its end.
    """

    exit_code: int
    nodes: tuple[NodeOutcome, ...]
    record: str
    problems: tuple[str, ...]
    seconds: float
