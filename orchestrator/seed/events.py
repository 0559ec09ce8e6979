"""What happens while nodes are seeded, as frozen values for whoever shows or counts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warmrank.cache_store.fetching.progress import Progress
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.outcome import NodeSeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The cluster was asked for its nodes, and answered.

    Attributes:
        nodes: those that are wanted and alive.
        joined: of these, those that were not there before.
        left: those that were there before, and are not any more.
    """

    nodes: tuple[Node, ...]
    joined: tuple[Node, ...] = ()
    left: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A node began to be seeded; its bytes come from so many other nodes too, where they have them."""

    node: Node
    attempt: int
    num_sources: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """How far nodes are, by their ids; also a sign of life."""

    progress: dict[str, Progress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a node; ``retry_in_s`` is None when it is not tried again."""

    seed: NodeSeed
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """The cluster does not answer; it is asked again."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """The cluster answers again, after so many seconds."""

    after_s: float


SeedEvent = Looked | Began | Advanced | Ended | Away | Back
Tell = Callable[[SeedEvent], None]


def nobody(event: SeedEvent) -> None:
    """Hears all and says nothing."""
    del event
