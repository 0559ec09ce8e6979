"""Runners of graphs that are not captured here: called as they are, or by an engine that captures by itself.

Both have what `worker.runtime.runner.GraphRunner` has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import NotCapturable
from warmrank.worker.runtime.artifact import MUTATED, STATE, USER
from warmrank.worker.runtime.runner import InputLayout, SettledInputs, Tally, autocast_kinds, is_plain, plain

if TYPE_CHECKING:
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.capture.statistics import CaptureStatistics
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.engines.overlap import OverlapCheck
    from warmrank.worker.engines.port import Graph, SelfCapturing
    from warmrank.worker.runtime.artifact import GraphFacts

_ONE_AT_A_TIME = threading.RLock()


class EagerRunner:
    """Calls one loaded graph, of an engine whose graphs are not captured."""

    max_captures: int = 0

    def __init__(self, graph: Graph, facts: GraphFacts, backend: DeviceBackend) -> None:
        self.layout = InputLayout(facts, clone_input=True, frozen_parameters=False)
        self.settled = SettledInputs(self.layout)
        self._graph = graph
        self._autocast_kinds = autocast_kinds(backend.kind)
        self._tally = Tally()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``.

        Raises `StateChanged`: a tensor of the module is not what the graph was loaded for; nothing ran.
        """
        self.settled.check(inputs)
        kinds = self._autocast_kinds
        self._tally.eager["kernels compiled ahead, which are not captured"] += 1
        with contextlib.nullcontext() if is_plain(kinds) else plain(kinds):
            outputs = self._graph(*inputs)
        self.layout.note_writes(inputs)
        return outputs

    def prepare(self, *inputs: Any) -> None:
        """Run the graph once, without lasting effect on mutated inputs."""
        from warmrank.worker.capture.captures import restored

        self.settled.check(inputs)
        with plain(self._autocast_kinds), restored(inputs, self.layout.mutated):
            self._graph(*inputs)

    def hand_over(self) -> None:
        """Nothing is made at run time that a later process could use."""

    def shapes(self) -> tuple[Shapes, ...]:
        """Nothing is captured."""
        return ()

    def shapes_for(self, inputs: Sequence[Any]) -> Shapes | None:
        """Nothing would be captured."""
        del inputs
        return None

    @property
    def statistics(self) -> CaptureStatistics:
        """Counters since the function was loaded."""
        return self._tally.taken(())


class SelfCapturingRunner(EagerRunner):
    """Hands calls over to an engine that captures and replays (``torchair``).

    What the engine captures on a call it does not tell, so the capture plan has the shapes of `prepare`.
    """

    def __init__(self, graph: SelfCapturing, facts: GraphFacts, backend: DeviceBackend, limit: int) -> None:
        super().__init__(graph, facts, backend)
        self.max_captures = 0 if graph.is_eager else limit
        self._capturing = graph
        self._kind = backend.kind
        self._overlap = _overlap_of(facts)
        self._prepared: dict[Shapes, None] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``; calls of all functions run one at a time, as one may capture.

        Raises:
            NotCapturable: the device has no stream left for what the engine captures, or an input that is
                written to shares memory with another one.
            StateChanged: a tensor of the module is not what the graph was loaded for.
        """
        self.settled.check(inputs)
        self._refuse_shared(inputs)
        with _ONE_AT_A_TIME:
            before = self._capturing.num_captures
            outputs = self._run(inputs)
            self.layout.note_writes(inputs)
            if self._capturing.is_eager:  # asked afterwards: a call may be the one that goes over the limit
                self._tally.eager["TorchAir runs the function eagerly"] += 1
            elif self._capturing.num_captures == before:
                self._tally.replays += 1
        return outputs

    def prepare(self, *inputs: Any) -> None:
        """Let the engine capture for ``inputs``, which runs the graph; mutated inputs keep their values."""
        self.layout.require_tensors(inputs)
        from warmrank.worker.capture.captures import restored

        self.settled.check(inputs)
        self._refuse_shared(inputs)
        with _ONE_AT_A_TIME, restored(inputs, self.layout.mutated):
            self._run(inputs)
        shapes = self.shapes_for(inputs)
        if shapes is not None:
            self._prepared[shapes] = None

    def _run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            if is_plain(self._autocast_kinds):
                return self._graph(*inputs)
            with plain(self._autocast_kinds):
                return self._graph(*inputs)
        except RuntimeError as error:
            from warmrank.worker.devices.failures import refuse_exhausted

            refuse_exhausted(error, self._kind)
            raise

    def _refuse_shared(self, inputs: tuple[Any, ...]) -> None:
        if self._overlap is not None and self._overlap(inputs):
            names = ", ".join(self.layout.described(index) for index in self.layout.mutated)
            msg = (
                f"{names} shares memory with another input, and is written to, which TorchAir's graphs do "
                "not expect; pass copies, or use engine graph"
            )
            raise NotCapturable(msg, operator="")

    def hand_over(self) -> None:
        """See `SelfCapturing.hand_over`."""
        self._capturing.hand_over()

    def shapes(self) -> tuple[Shapes, ...]:
        """The shapes that were prepared."""
        return tuple(self._prepared)

    def shapes_for(self, inputs: Sequence[Any]) -> Shapes | None:
        """Entry of the capture plan for these inputs; None if nothing would be captured for them."""
        from warmrank.worker.capture.plan import shapes_of

        return None if self._capturing.is_eager else shapes_of(self.layout, inputs)

    @property
    def statistics(self) -> CaptureStatistics:
        """Counters that are seen from outside: graphs that the engine holds, and calls."""
        self._tally.captures = self._capturing.num_captures
        return self._tally.taken(())


def _overlap_of(facts: GraphFacts) -> OverlapCheck | None:
    """Check for shared memory, made before each call; None if nothing is written to."""
    positions = {
        kind: [index for index, found in enumerate(facts.input_classes) if found == kind]
        for kind in (MUTATED, STATE, USER)
    }
    if not positions[MUTATED]:
        return None
    from warmrank.worker.engines.overlap import OverlapCheck

    return OverlapCheck(positions[MUTATED], positions[STATE], positions[USER])
