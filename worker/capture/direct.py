"""Runs a graph as it is, for engines whose graphs are not captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from warmrank.worker.capture import modes
from warmrank.worker.capture.entry import InputLayout
from warmrank.worker.capture.settled import SettledInputs
from warmrank.worker.capture.statistics import CaptureStatistics, Tally
from warmrank.worker.devices.memory import memory_of

if TYPE_CHECKING:
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.devices import DeviceBackend
    from warmrank.worker.engines import Graph
    from warmrank.worker.graph_facts import GraphFacts


class DirectRunner:
    """Calls one loaded graph; has what `worker.capture.runner.GraphRunner` has."""

    max_captures: int = 0

    def __init__(self, graph: Graph, facts: GraphFacts, backend: DeviceBackend) -> None:
        self.layout = InputLayout(facts, clone_input=True, frozen_parameters=False)
        self.settled = SettledInputs(self.layout)
        self._graph = graph
        self._autocast_kinds = modes.autocast_kinds(backend.kind)
        self._tally = Tally()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``.

        Raises:
            StateChanged: a tensor of the module is not what the graph was loaded for; nothing ran.
        """
        self.settled.check(inputs)
        kinds = self._autocast_kinds
        self._tally.eager["kernels compiled ahead, which are not captured"] += 1
        with contextlib.nullcontext() if modes.is_plain(kinds) else modes.plain(kinds):
            outputs = self._graph(*inputs)
        self.layout.note_writes(inputs)
        return outputs

    def prepare(self, *inputs: Any) -> None:
        """Run the graph once, without lasting effect on mutated inputs."""
        self.settled.check(inputs)
        with modes.plain(self._autocast_kinds), restored(inputs, self.layout.mutated):
            self._graph(*inputs)

    def shapes(self) -> tuple[Shapes, ...]:
        """Nothing is captured."""
        return ()

    def shapes_for(self, inputs: Sequence[Any]) -> Shapes | None:
        """Nothing would be captured."""
        del inputs
        return None

    @property
    def statistics(self) -> CaptureStatistics:
        """What was done since the function was loaded."""
        return self._tally.taken(())


@contextlib.contextmanager
def restored(inputs: Sequence[Any], mutated: Sequence[int]) -> Iterator[None]:
    """Gives mutated inputs their values back at the end."""
    saved = [memory_of(inputs[index]).clone() for index in mutated]
    try:
        yield
    finally:
        for index, before in zip(mutated, saved, strict=True):
            memory_of(inputs[index]).copy_(before)
