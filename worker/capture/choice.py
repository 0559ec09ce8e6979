"""Which runner calls an engine's graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warmrank.worker.capture.direct import DirectRunner
from warmrank.worker.capture.handed import HandedRunner
from warmrank.worker.capture.runner import GraphRunner

if TYPE_CHECKING:
    from warmrank.worker.capture.options import CaptureOptions
    from warmrank.worker.devices import DeviceBackend
    from warmrank.worker.engines import Engine
    from warmrank.worker.graph_facts import GraphFacts

Runner = GraphRunner | DirectRunner


def runner_for(
    engine: Engine, graph: Any, facts: GraphFacts, backend: DeviceBackend, options: CaptureOptions
) -> Runner:
    """A runner for a graph that the engine loaded: captured here, by the engine, or not at all."""
    if engine.captured:
        return GraphRunner(graph, facts, backend, options)
    if engine.captures_itself:
        return HandedRunner(graph, facts, backend, options.limit)
    return DirectRunner(graph, facts, backend)
