"""Engines turn a traced graph into sections and files of an artifact, and such into a callable.

One file per implementation. `engine_for` says which one a mode means; `engine_named` finds the one that made
an artifact.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from worker.errors import NotYet
from worker.values import Value

if TYPE_CHECKING:
    from worker.graph_facts import GraphFacts
    from worker.torch_private.lowering import LoweredGraph

Graph = Callable[..., tuple[Any, ...]]

_HOMES = {
    "graph": ("worker.engines.graph", "GraphEngine"),
    "aoti": ("worker.engines.aoti", "AotiEngine"),
}
_MODES = {"reduce-overhead": "graph", "max-autotune": "aoti", "npugraph_ex": "torchair"}


class Built(Value):
    """What an engine made of a graph.

    Attributes:
        sections: bytes to keep inside the artifact, by name.
        files: bytes to keep in files beside it, by file name.
    """

    sections: Mapping[str, bytes]
    files: Mapping[str, bytes] = field(default_factory=dict)


class Engine(Protocol):
    """A way to run a traced graph.

    Attributes:
        name: name in keys and reports.
        version: changes whenever the sections' meaning does; part of the key.
        captured: whether its graphs are captured before they run; those of others are called as they are.
    """

    name: str
    version: str
    captured: bool

    def check(self, device_kind: str) -> None:
        """Refuse what could not be compiled for this kind of device, before anything is traced.

        Raises:
            WorkerError: something that the engine needs is missing; the message names the remedy.
        """
        ...

    def compile(self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool) -> Built:
        """What to keep of a graph; equal graphs give equal bytes.

        Args:
            lowered: the graph; runs within its tracing context, before the guards are written.
            facts: what `worker.graph_facts` found.
            keep_compiled: keep compiled kernels in files beside the artifact (``ge_cache``).
        """
        ...

    def load(
        self, sections: Mapping[str, bytes], files: Mapping[str, Path], groups: Mapping[str, str]
    ) -> Graph:
        """A callable over the graph's inputs; imports neither Dynamo, Inductor nor sympy.

        Args:
            sections: of `compile`.
            files: where its files lie, by name; verified.
            groups: role -> this process's name of the group.
        """
        ...


def engine_for(mode: str) -> Engine:
    """The engine that a mode of `CompilerConfig` means.

    Raises:
        NotYet: the mode's engine is not built yet.
    """
    return engine_named(_MODES[mode])


def engine_named(name: str) -> Engine:
    """The engine of this name.

    Raises:
        NotYet: it is not built yet.
    """
    if name not in _HOMES:
        raise NotYet(f"engine {name}", instead='use mode "reduce-overhead" (engine graph)')
    module, attribute = _HOMES[name]
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine
