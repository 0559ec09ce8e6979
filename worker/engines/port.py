"""The port of engines: a traced graph becomes sections and files of an artifact, and these a callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.engines import Site
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import LoweredGraph

Graph = Callable[..., tuple[Any, ...]]
Sections = Mapping[str, bytes]
Files = Mapping[str, Path]
Groups = Mapping[str, str]


class Built(Value):
    """Products of an engine: bytes inside the artifact, and files beside it, both by name."""

    sections: Mapping[str, bytes]
    files: Mapping[str, bytes] = field(default_factory=dict)


class SelfCapturing(Protocol):
    """A loaded graph of an engine that captures by itself.

    Attributes:
        is_eager: it never captures, or has stopped.
        num_captures: captured graphs that it holds.
    """

    @property
    def is_eager(self) -> bool: ...  # noqa: D102 - above

    @property
    def num_captures(self) -> int: ...  # noqa: D102 - above

    def hand_over(self) -> None:
        """Let the node keep what was made at run time, for processes that load the artifact later."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...  # noqa: D102


class Engine(Protocol):
    """A way to run a traced graph."""

    name: str  # name in keys and reports
    version: str  # changes whenever the sections' meaning does; part of the key
    captured: bool  # whether the capture runtime captures its graphs; those of others are called as they are
    captures_itself: bool  # whether a call of its graph captures and replays by itself

    def check(self, device_kind: str) -> None:
        """Raise `WorkerError` for what this kind of device cannot compile, before anything is traced."""

    def compile(self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None) -> Built:
        """Compile a graph into bytes to keep; equal graphs give equal bytes.

        Runs within the graph's tracing context, before the guards are written. ``site`` is None where there
        is a graph only, which not every engine takes.
        """

    def outline(self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None) -> Sections:
        """Sections of `compile` that an audit compares: made of the trace alone, without kernels."""

    def load(self, sections: Sections, files: Files, groups: Groups, *, site: Site | None = None) -> Graph:
        """A callable over the graph's inputs; imports neither Dynamo, Inductor nor sympy.

        Engine ``torchair`` imports what TorchAir does. ``files`` are verified; ``groups`` maps a role to
        this process's name of the group.
        """
