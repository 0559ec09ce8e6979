"""What the driver of a command and its nodes tell each other: plain values that cross Ray."""

from __future__ import annotations

from dataclasses import dataclass, field

from warmrank.orchestrator.serve.command import Chunk
from warmrank.orchestrator.serve.places import Place
from warmrank.orchestrator.serve.readiness import When
from warmrank.worker.results import Published


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a node is to run.

    Attributes:
        words: the command, with its placeholders.
        place: the node's.
        when: it is ready.
        grace_s: seconds from SIGTERM to SIGKILL.
        captured: its output is taken, not this process's.
    """

    words: tuple[str, ...]
    place: Place
    when: When
    grace_s: float
    captured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What became of a node's caches before the command.

    Attributes:
        found: the store has the launch.
        said: what is worth a line.
        problems: what went wrong.
    """

    found: bool
    said: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a node has to say since it was asked last.

    Attributes:
        output: of the command.
        status: its exit status once all of it has ended.
        is_ready: the condition held at some time.
    """

    output: tuple[Chunk, ...]
    status: int | None
    is_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a node brought to the store."""

    published: dict[int, Published] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
