"""Runs graphs of an engine that captures and replays by itself (``torchair``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.capture.captures import restored
from warmrank.worker.devices.failures import refuse_exhausted
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.errors import NotCapturable
from warmrank.worker.runtime.artifact import MUTATED, STATE, USER
from warmrank.worker.runtime.runner import CaptureOptions, GraphRunner

if TYPE_CHECKING:
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.engines.torchair import LoadedGraph
    from warmrank.worker.runtime.artifact import GraphFacts

_ONE_AT_A_TIME = threading.RLock()


class SelfCapturingRunner(GraphRunner):
    """Hands calls over; those of all functions run one at a time, as one may capture.

    What the engine captures on a call it does not tell, so the capture plan has the shapes of `prepare`.
    """

    captures_itself = True

    def __init__(
        self, graph: LoadedGraph, facts: GraphFacts, backend: DeviceBackend, options: CaptureOptions
    ) -> None:
        super().__init__(graph, facts, backend, CaptureOptions(limit=options.limit))
        self.lock = _ONE_AT_A_TIME
        self._capturing = graph
        self._stored = frozenset(facts.stored_outputs)
        self._prepared: dict[Shapes, None] = {}
        written, *read = (
            [index for index, found in enumerate(facts.input_classes) if found == kind]
            for kind in (MUTATED, STATE, USER)
        )
        self._overlap = OverlapCheck(written, *read) if written else None

    @property
    def max_captures(self) -> int:
        """Number of graphs that may be captured."""
        return 0 if self._capturing.is_eager else self.options.limit

    def hand_over(self) -> None:
        """See `LoadedGraph.hand_over`."""
        self._capturing.hand_over()

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that were prepared."""
        return tuple(self._prepared)

    def _prepare(self, inputs: tuple[Any, ...]) -> None:
        """Let the engine capture, which runs the graph; inputs keep their values.

        One that an earlier call returned, such as a buffer that the method replaces, may lie where the run
        puts its outputs. Parameters don't.
        """
        written = [
            index
            for index, value in enumerate(inputs)
            if index in self.layout.mutated
            or (isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter))
        ]
        with restored(inputs, written):
            self._call(inputs)
        shapes = self.shapes_for(inputs)
        if shapes is not None:
            self._prepared[shapes] = None

    def _run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self._check(inputs)
        before = self._capturing.num_captures
        outputs = self._call(inputs)
        self.layout.note_writes(inputs)
        if self._capturing.is_eager:  # asked afterwards: a call may be the one that goes over the limit
            self.tally.eager["TorchAir runs the function eagerly"] += 1
        elif self.tally.captures == before:
            self.tally.replays += 1
        if not self._stored:
            return outputs
        # The next replay would overwrite what an object holds.
        return tuple(
            value.clone() if index in self._stored and isinstance(value, torch.Tensor) else value
            for index, value in enumerate(outputs)
        )

    def _call(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Outputs of the engine.

        Raises `NotCapturable`: the device has no stream left for what the engine captures, or an input that
        is written to shares memory with another one.
        """
        if self._overlap is not None and self._overlap(inputs):
            names = ", ".join(self.layout.described(index) for index in self.layout.mutated)
            raise NotCapturable(
                f"{names} shares memory with another input, and is written to, which TorchAir's graphs do "
                "not expect; pass copies, or use engine graph"
            )
        try:
            return self.graph(*inputs)
        except RuntimeError as error:
            refuse_exhausted(error, self.backend.kind)
            raise
        finally:
            self.tally.captures = self._capturing.num_captures
