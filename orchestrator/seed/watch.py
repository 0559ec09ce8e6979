"""`warmrank preseed --watch`: seeds nodes as they join, for as long as it runs.

Ray ends a process whose cluster's head was away for a minute, and a call may hang for as long. So the watch
itself does not touch Ray: a child process does, and is started again when it ended or fell silent.
Invariants: the outcomes survive the child; a cluster that is away is said so once, asked again later each
time, and said so when it is back; the child ends when its parent has ended, with all that it started.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import OrchestratorError
from warmrank.orchestrator.others_output import others_on_stderr
from warmrank.orchestrator.seed.here import NodeSeed
from warmrank.orchestrator.seed.on_ray import STEP_S, seeding_on_ray
from warmrank.orchestrator.seed.seeding import ADVANCE_EVERY_S, SeedPlan
from warmrank.orchestrator.seed.show import SeedLines
from warmrank.orchestrator.signals import undisturbed

HUNG_S = 90.0
"""Without a sign of life for so long the child, which gives one a second, is ended. Ray gives up after 60."""
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0
_STOP_S = 10.0

Start = Callable[[tuple[NodeSeed, ...]], AbstractContextManager[Any]]


class Watch:
    """Keeps a child running until so many seconds have passed, or so many nodes of the cluster are seeded.

    Args:
        start: a child for as long as its context lasts, given the nodes that are seeded: a connection, over
            which come the states of all nodes, or why it ends.
        lines: shows it all.
        seconds: None for ever.
        num_nodes: None for any number.
        clock: seconds, never going back.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        start: Start,
        lines: SeedLines,
        *,
        seconds: float | None = None,
        num_nodes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._start, self._lines, self._clock, self._sleep = start, lines, clock, sleep
        self._end_s = clock() + (float("inf") if seconds is None else seconds)
        self._num_nodes = float("inf") if num_nodes is None else num_nodes
        self._num_failures = 0
        self._away_s: float | None = None

    def run(self) -> None:
        """Watch until it is over."""
        while not self._is_over():
            with self._start(self._seeded()) as child:
                why = self._follow(child)
            if self._is_over():
                return
            if self._away_s is None:
                self._away_s = self._clock()
                self._lines.say(
                    f"the cluster is away, and asked again until it is back: {why}", style="yellow"
                )
            wait_s = min(FIRST_WAIT_S * 2.0 ** min(self._num_failures, 16), LONGEST_WAIT_S)
            self._num_failures += 1
            self._sleep(min(wait_s, self._end_s - self._clock()))

    def _follow(self, child: Any) -> str:
        """Show what a child says; returns why it is of no more use."""
        why, heard_s = "the process that watches it ended; Ray ends it without a head", self._clock()
        while not self._is_over():
            try:
                heard = child.recv() if child.poll(STEP_S) else None
            except (EOFError, OSError):
                break
            if isinstance(heard, str):
                why = heard
            elif heard is not None:
                heard_s, self._num_failures = self._clock(), 0
                if self._away_s is not None:
                    self._lines.say(
                        f"the cluster is back after {heard_s - self._away_s:.0f} s", style="green"
                    )
                    self._away_s = None
                self._lines.show(heard)
            elif self._clock() - heard_s >= HUNG_S:
                return f"no answer for {HUNG_S:g} s"
        return why

    def _is_over(self) -> bool:
        return self._clock() >= self._end_s or len(self._seeded()) >= self._num_nodes

    def _seeded(self) -> tuple[NodeSeed, ...]:
        return tuple(seed for seed in self._lines.outcomes() if seed.status == "seeded")


@contextmanager
def seeding_process(config: Config, plan: SeedPlan, seeded: tuple[NodeSeed, ...]) -> Iterator[Connection]:
    """A process that seeds by a plan, for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")  # a fork would take this process's threads along
    connection, theirs = context.Pipe()
    arguments = (theirs, config, replace(plan, watch=True, seeded=seeded))
    process = context.Process(target=_seed, args=arguments, daemon=True, name="watch")
    with undisturbed():  # which it inherits, so that no Ctrl-C ends it while it starts
        process.start()
    theirs.close()
    try:
        yield connection
    finally:
        with undisturbed():
            connection.close()
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


def _seed(connection: Connection, config: Config, plan: SeedPlan) -> None:
    """Seed until the parent closes its end of the pipe; Ctrl-C and SIGTERM are the parent's to act on."""
    # What Ray's core would print into the parent's terminal when a head is away is said there in words.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with undisturbed(), others_on_stderr():
        try:
            with seeding_on_ray(config, plan) as seeding:
                told_s = float("-inf")
                while not connection.poll(STEP_S):  # its end of file is something to read, too
                    seeding.step()
                    if time.monotonic() - told_s >= ADVANCE_EVERY_S:
                        told_s = time.monotonic()
                        connection.send(tuple(seeding.states.values()))
        except (BrokenPipeError, EOFError):
            return
        except (OrchestratorError, OSError) as error:
            connection.send(str(error))
