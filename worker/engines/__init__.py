"""Engines turn a traced graph into sections and files of an artifact, and such into a callable.

One file per implementation. `worker.engines` says which one compiles; `engine_named` finds the one
that made an artifact.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

from warmrank.worker.errors import NotYet
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import LoweredGraph

Graph = Callable[..., tuple[Any, ...]]

_HOMES = {
    "graph": ("warmrank.worker.engines.graph", "GraphEngine"),
    "aoti": ("warmrank.worker.engines.aoti", "AotiEngine"),
    "torchair": ("warmrank.worker.engines.torchair", "TorchairEngine"),
}


class Built(Value):
    """What an engine made of a graph.

    Attributes:
        sections: bytes to keep inside the artifact, by name.
        files: bytes to keep in files beside it, by file name.
    """

    sections: Mapping[str, bytes]
    files: Mapping[str, bytes] = field(default_factory=dict)


class Site(Value):
    """The function that an engine works for, for engines that need more of it than its graph.

    Attributes:
        method: the bound method.
        config: how it is compiled.
        dynamic: traced with symbolic sizes.
        decompositions: operator overload -> function that replaces it.
        ge_cache: keep what GE compiles (TorchAir's parameter, in mode max-autotune).
        frame: at a load, the artifact's frame, as marshalled code; empty while compiling.
        digest: at a load, the artifact's, hex; empty while compiling.
        cache_root: the cache directory; None where nothing is kept.
    """

    method: MethodType
    config: CompilerConfig
    dynamic: bool
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    ge_cache: bool = False
    frame: bytes = b""
    digest: str = ""
    cache_root: Path | None = None


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
        """Let the node keep what was made at run time, for processes that load the same artifact later."""
        ...

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for the graph's inputs."""
        ...


class Engine(Protocol):
    """A way to run a traced graph.

    Attributes:
        name: name in keys and reports.
        version: changes whenever the sections' meaning does; part of the key.
        captured: whether the capture runtime captures its graphs; those of others are called as they are.
        captures_itself: whether a call of its graph captures and replays by itself.
    """

    name: str
    version: str
    captured: bool
    captures_itself: bool

    def check(self, device_kind: str) -> None:
        """Refuse what could not be compiled for this kind of device, before anything is traced.

        Raises:
            WorkerError: something that the engine needs is missing; the message names the remedy.
        """
        ...

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool, site: Site | None = None
    ) -> Built:
        """What to keep of a graph; equal graphs give equal bytes.

        Args:
            lowered: the graph, and the call it was traced from; runs within its tracing context, before the
                guards are written.
            facts: what `worker.graph_facts` found.
            keep_compiled: keep compiled kernels in files beside the artifact (``ge_cache``).
            site: the call; None where there is a graph only, which not every engine takes.
        """
        ...

    def outline(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None
    ) -> Mapping[str, bytes]:
        """What an audit compares of `compile`'s sections: made of the trace alone, without kernels.

        Raises:
            WorkerError: as `compile`, where that needs no kernels to see it.
        """
        ...

    def load(
        self,
        sections: Mapping[str, bytes],
        files: Mapping[str, Path],
        groups: Mapping[str, str],
        *,
        site: Site | None = None,
    ) -> Graph:
        """A callable over the graph's inputs; imports neither Dynamo, Inductor nor sympy.

        Engine ``torchair`` imports what TorchAir does.

        Args:
            sections: of `compile`.
            files: where its files lie, by name; verified.
            groups: role -> this process's name of the group.
            site: the function; None where there is a graph only, which not every engine takes.
        """
        ...


class Outliner:
    """Stands for an engine where nothing is compiled for use, but outlined for an audit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.version = engine.name, engine.version
        self.captured, self.captures_itself = engine.captured, engine.captures_itself

    def check(self, device_kind: str) -> None:
        """See `Engine.check`; an outline needs no compiler."""

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool, site: Site | None = None
    ) -> Built:
        """See `Engine.compile`; the sections are those of the outline."""
        del keep_compiled
        return Built(sections=self.outline(lowered, facts, site=site))

    def outline(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None
    ) -> Mapping[str, bytes]:
        """See `Engine.outline`."""
        return self._engine.outline(lowered, facts, site=site)

    def load(
        self,
        sections: Mapping[str, bytes],
        files: Mapping[str, Path],
        groups: Mapping[str, str],
        *,
        site: Site | None = None,
    ) -> Graph:
        """See `Engine.load`."""
        return self._engine.load(sections, files, groups, site=site)


@functools.cache
def engine_named(name: str) -> Engine:
    """The engine of this name.

    Raises:
        NotYet: there is none in this release.
    """
    if name not in _HOMES:
        raise NotYet(f"engine {name}", instead=f"there are {', '.join(_HOMES)}; a later release may have it")
    module, attribute = _HOMES[name]
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine
