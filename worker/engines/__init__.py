"""Engines turn a traced graph into sections of an artifact, and such sections into a callable.

One file per implementation; `engine_for` says which one a mode means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from worker.errors import NotYet

if TYPE_CHECKING:
    from worker.graph_facts import GraphFacts
    from worker.torch_private import LoweredGraph

Graph = Callable[..., tuple[Any, ...]]


class Engine(Protocol):
    """A way to run a traced graph.

    Attributes:
        name: name in keys and reports.
        version: changes whenever the sections' meaning does; part of the key.
    """

    name: str
    version: str

    def compile(self, lowered: LoweredGraph, facts: GraphFacts) -> dict[str, bytes]:
        """Named sections to keep in the artifact; equal graphs give equal bytes."""
        ...

    def load(self, sections: Mapping[str, bytes], groups: Mapping[str, str]) -> Graph:
        """A callable over the graph's inputs; imports neither Dynamo, Inductor nor sympy.

        Args:
            sections: what `compile` returned.
            groups: role -> this process's name of the group.
        """
        ...


def engine_for(mode: str) -> Engine:
    """The engine that a mode of `CompilerConfig` means.

    Raises:
        NotYet: the mode's engine is not built yet.
    """
    if mode == "reduce-overhead":
        from worker.engines.graph import GraphEngine

        return GraphEngine()
    name = {"max-autotune": "aoti", "npugraph_ex": "torchair"}.get(mode, mode)
    raise NotYet(f"engine {name} (mode {mode!r})", instead='use mode "reduce-overhead" (engine graph)')
