"""Runs a graph as it is, for engines whose graphs are not captured; and what all runners need for that."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.capture.layout import InputLayout, SettledInputs
from warmrank.worker.devices.memory import memory_of

if TYPE_CHECKING:
    from warmrank.worker.capture.plan import Shapes
    from warmrank.worker.capture.statistics import CaptureStatistics, PoolStatistics
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.engines import Graph
    from warmrank.worker.runtime.artifact import GraphFacts


class Tally:
    """The counters of one runner."""

    def __init__(self) -> None:
        self.captures = self.replays = self.warm_up_runs = 0
        self.recaptured: Counter[str] = Counter()
        self.eager: Counter[str] = Counter()

    def taken(self, pools: tuple[PoolStatistics, ...]) -> CaptureStatistics:
        """The counters as they stand."""
        from warmrank.worker.capture.statistics import CaptureStatistics, counts

        return CaptureStatistics(
            captures=self.captures,
            recapture_causes=counts(self.recaptured),
            replays=self.replays,
            warm_up_runs=self.warm_up_runs,
            eager_causes=counts(self.eager),
            pools=pools,
        )


class EagerRunner:
    """Calls one loaded graph; has what `worker.capture.runner.GraphRunner` has."""

    max_captures: int = 0

    def __init__(self, graph: Graph, facts: GraphFacts, backend: DeviceBackend) -> None:
        self.layout = InputLayout(facts, clone_input=True, frozen_parameters=False)
        self.settled = SettledInputs(self.layout)
        self._graph = graph
        self._autocast_kinds = autocast_kinds(backend.kind)
        self._tally = Tally()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs of the graph for ``inputs``.

        Raises:
            StateChanged: a tensor of the module is not what the graph was loaded for; nothing ran.
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
        """What was done since the function was loaded."""
        return self._tally.taken(())


@contextlib.contextmanager
def restored(inputs: Sequence[Any], mutated: Sequence[int]) -> Iterator[None]:
    """Gives mutated inputs their values back at the end, and generators of random numbers their states.

    An operator of the user's may draw numbers although nothing says so.
    """
    saved = [memory_of(inputs[index]).clone() for index in mutated]
    generators = [(put_back, state()) for state, put_back in _generators()]
    try:
        yield
    finally:
        for put_back, drawn_from in generators:
            put_back(drawn_from)
        for index, before in zip(mutated, saved, strict=True):
            memory_of(inputs[index]).copy_(before)


def _generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How the state of each default generator on the host is read and set."""
    yield torch.get_rng_state, torch.set_rng_state
    yield random.getstate, random.setstate
    if numpy_random := sys.modules.get("numpy.random"):
        yield numpy_random.get_state, numpy_random.set_state


def autocast_kinds(device_kind: str) -> tuple[str, ...]:
    """The kinds of devices whose autocast may reach a graph's operators."""
    return tuple(dict.fromkeys(("cpu", device_kind)))


def is_plain(kinds: tuple[str, ...]) -> bool:
    """Whether neither autograd nor autocast is on: then `plain` changes nothing."""
    return not (torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, kinds)))


@contextlib.contextmanager
def plain(kinds: Iterable[str]) -> Iterator[None]:
    """No autograd, and no autocast: the casts that autocast made are operators of the graph already."""
    with contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def ordinary_tensors(mutated: Iterable[torch.Tensor]) -> Iterator[None]:
    """Out of inference mode, so that what is allocated here can be written to in and out of it.

    Unless a mutated input was made in that mode: then every call has to be in it.
    """
    if not torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in mutated):
        yield
        return
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
