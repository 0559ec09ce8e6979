"""The process of a watch that is on Ray: seeds nodes as they join, and says all that happens through a pipe.

Invariants: it ends when its parent has ended, or says so, with all that it started; it ignores Ctrl-C and
SIGTERM, which reach it with its parent, because the parent decides.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import OrchestratorError
from warmrank.orchestrator.others_output import others_on_stderr
from warmrank.orchestrator.seed.events import Away, SeedEvent
from warmrank.orchestrator.seed.options import SeedOptions
from warmrank.orchestrator.seed.preseed import STEP_S, plan_of, seed_cluster
from warmrank.orchestrator.seed.seeding import Seeding
from warmrank.orchestrator.signals import undisturbed

_STOP_S = 10.0


def run_child(
    connection: Connection,
    config: Config,
    wanted: tuple[str, ...],
    options: SeedOptions,
    seeded: frozenset[str],
) -> None:
    """Seed until the parent closes its end of the pipe."""
    plan = plan_of(config, wanted, options, watch=True, seeded=seeded)
    # What Ray's core would print into the parent's terminal when a head is away is said there in words.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with undisturbed(), others_on_stderr():
        try:
            with seed_cluster(config, options) as cluster:
                seeding = Seeding(cluster, plan, tell=connection.send)
                while not connection.poll(STEP_S):  # its end of file is something to read, too
                    seeding.step()
        except (BrokenPipeError, EOFError):
            return
        except (OrchestratorError, OSError) as error:
            connection.send(Away(reason=str(error)))


class ProcessChild:
    """A `Child` that is a process.

    Args:
        config: the launch.
        wanted: names of nodes.
        options: how they are seeded.
        seeded: ids of those that are seeded already.
    """

    def __init__(
        self, config: Config, wanted: tuple[str, ...], options: SeedOptions, seeded: frozenset[str]
    ) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would take this process's threads along
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=run_child, args=(theirs, config, wanted, options, seeded), daemon=True, name="watch"
        )
        with undisturbed():  # which it inherits, so that no Ctrl-C ends it while it starts
            self._process.start()
        theirs.close()

    def events(self) -> list[SeedEvent]:
        """See `Child.events`."""
        found: list[SeedEvent] = []
        try:
            while self._connection.poll():
                found.append(self._connection.recv())
        except (EOFError, OSError):
            pass  # it ended
        return found

    def is_alive(self) -> bool:
        """See `Child.is_alive`."""
        return self._process.is_alive()

    def stop(self) -> None:
        """See `Child.stop`."""
        with undisturbed():
            self._connection.close()
            self._process.join(_STOP_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
