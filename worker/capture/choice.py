"""Which runner calls an engine's graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worker.capture.direct import DirectRunner
from worker.capture.handed import HandedRunner
from worker.capture.runner import GraphRunner

if TYPE_CHECKING:
    from worker.capture.options import CaptureOptions
    from worker.devices import DeviceBackend
    from worker.engines import Engine
    from worker.graph_facts import GraphFacts

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
