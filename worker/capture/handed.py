"""Runs a graph of an engine that captures and replays by itself (engine ``torchair``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from worker.capture import modes
from worker.capture.direct import DirectRunner, restored
from worker.capture.plan import Shapes, shapes_of
from worker.capture.statistics import CaptureStatistics, Tally
from worker.devices.failures import refuse_exhausted

if TYPE_CHECKING:
    from worker.devices import DeviceBackend
    from worker.engines import SelfCapturing
    from worker.graph_facts import GraphFacts


class HandedRunner(DirectRunner):
    """Hands calls over; has what `worker.capture.runner.GraphRunner` has.

    What the engine captures on a call it does not tell, so the capture plan has the shapes of `prepare`.
    """

    def __init__(self, graph: SelfCapturing, facts: GraphFacts, backend: DeviceBackend, limit: int) -> None:
        super().__init__(graph, facts, backend)
        self.max_captures = 0 if graph.is_eager else limit
        self._handed = graph
        self._kind = backend.kind
        self._eager_calls = self._replays = 0
        self._prepared: dict[Shapes, None] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``.

        Raises:
            NotCapturable: the device has no stream left for what the engine captures.
        """
        try:
            if modes.is_plain(self._autocast_kinds):
                outputs = self._graph(*inputs)
            else:
                with modes.plain(self._autocast_kinds):
                    outputs = self._graph(*inputs)
        except RuntimeError as error:
            refuse_exhausted(error, self._kind)
            raise
        if self._handed.is_eager:  # asked afterwards: a call may be the one that goes over the limit
            self._eager_calls += 1
        else:
            self._replays += 1
        return outputs

    def prepare(self, *inputs: Any) -> None:
        """Let the engine capture for ``inputs``, which runs the graph; mutated inputs keep their values."""
        self.layout.require_tensors(inputs)
        try:
            with modes.plain(self._autocast_kinds), restored(inputs, self.layout.mutated):
                self._graph(*inputs)
        except RuntimeError as error:
            refuse_exhausted(error, self._kind)
            raise
        shapes = self.shapes_for(inputs)
        if shapes is not None:
            self._prepared[shapes] = None

    def hand_over(self) -> None:
        """See `worker.engines.SelfCapturing.hand_over`."""
        self._handed.hand_over()

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that were prepared."""
        return tuple(self._prepared)

    def shapes_for(self, inputs: Sequence[Any]) -> Shapes | None:
        """What the capture plan says of these inputs; None where nothing would be captured for them."""
        return None if self._handed.is_eager else shapes_of(self.layout, inputs)

    @property
    def statistics(self) -> CaptureStatistics:
        """What can be told from outside: graphs that the engine holds, and calls."""
        captures = self._handed.num_captures
        tally = Tally(captures=captures, replays=self._replays)
        if self._eager_calls:
            tally.eager["TorchAir runs the function eagerly"] = self._eager_calls
        return tally.taken(())
