"""The watch over the process that seeds: heads that are away, and when it ends."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from tests.support.ray_cluster import Clock, make_node, seeded
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed
from warmrank.orchestrator.seed.seeding import NodeState
from warmrank.orchestrator.seed.show import SeedLines
from warmrank.orchestrator.seed.watch import HUNG_S, Watch

ONE, TWO = make_node(1), make_node(2)
STEP_S = 10.0


class Stage:
    """A watch and its children, each of which says what a script has it say, one thing each `STEP_S`.

    Attributes:
        known: what each child was told to be seeded.
        stopped: how many children were ended.
    """

    def __init__(self, *scripts: list[Any], **until: Any) -> None:
        self.clock = Clock()
        self.known: list[list[Node]] = []
        self.started_s: list[float] = []
        self.num_stopped = 0
        self._scripts = iter(scripts)
        self._text = io.StringIO()
        self.lines = SeedLines(Console(file=self._text, width=200), clock=self.clock)
        Watch(self._start, self.lines, clock=self.clock, sleep=self.clock.sleep, **until).run()

    @contextmanager
    def _start(self, known: tuple[NodeSeed, ...]) -> Iterator[FakeChild]:
        self.known.append([seed.node for seed in known])
        self.started_s.append(self.clock.now_s)
        try:
            yield FakeChild(next(self._scripts, []), self.clock)
        finally:
            self.num_stopped += 1

    def said(self, of: str) -> list[str]:
        return [line for line in self._text.getvalue().splitlines() if of in line]


class FakeChild:
    """A connection; None in its script is silence, and its end that of the process."""

    def __init__(self, script: list[Any], clock: Clock) -> None:
        self._script, self._clock = script, clock

    def poll(self, timeout_s: float) -> bool:
        del timeout_s
        self._clock.now_s += STEP_S
        if self._script and self._script[0] is None:
            self._script.pop(0)
            return False
        return True

    def recv(self) -> Any:
        if not self._script:
            raise EOFError
        return self._script.pop(0)


def states(*found: NodeSeed | Node) -> tuple[NodeState, ...]:
    def state(item: NodeSeed | Node) -> NodeState:
        if isinstance(item, Node):
            return NodeState(node=item)
        return NodeState(node=item.node, phase="ended", attempts=1, seed=item)

    return tuple(map(state, found))


def test_what_the_process_says_is_shown_and_ends_the_watch():
    stage = Stage([states(ONE, TWO), states(seeded(ONE), TWO)], num_nodes=1)
    assert stage.said("2 nodes found")
    assert stage.lines.outcomes() == (seeded(ONE),)
    assert (len(stage.known), stage.num_stopped) == (1, 1)


def test_process_that_ended_is_started_again_later_each_time():
    stage = Stage(seconds=120.0)
    waits = [later - earlier - STEP_S for earlier, later in itertools.pairwise(stage.started_s)]
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0]


def test_process_that_is_silent_for_long_is_ended():
    silent = [None] * int(HUNG_S / STEP_S - 1)
    stage = Stage([states(ONE), *silent, states(ONE), *silent, None], [states(seeded(ONE))], num_nodes=1)
    assert len(stage.known) == 2
    assert stage.said("no answer for 90 s")


def test_nodes_of_another_cluster_at_the_same_address_replace_the_former():
    stage = Stage([states(seeded(ONE)), states(TWO)], seconds=30.0)
    assert stage.said(f"{ONE}: left the cluster")
    assert stage.lines.outcomes() == ()
