"""What one node sees of its ranks: a Ray actor of its own that imports no torch, so nothing stalls it.

Each look renews the lease of the node's guardian (`orchestrator.gang.guardian`), which ends the ranks when
looks stay away, and then this process, so that nothing of an attempt that is lost stays on a node that nobody
can reach. The guardian is a process of its own, and outlives this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmrank.orchestrator.gang import last_words
from warmrank.orchestrator.gang.guardian import fields_of, start_of
from warmrank.orchestrator.gang.guarding import Guarding, Lease
from warmrank.orchestrator.gang.launcher import Sight
from warmrank.orchestrator.gang.node_calls import Answers, Batches, NodeCalls
from warmrank.orchestrator.gang.step_file import read_step, step_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A rank as its node knows it.

    Attributes:
        pid: its process.
        mark: what its environment says; see `orchestrator.gang.guardian.MARK`.
        log: its log file; beside it are others of the rank's.
    """

    pid: int
    mark: str
    log: Path


class NodeWatch:
    """Looks at the ranks of one node, and keeps their guardian.

    Args:
        asked_s: how long ranks have at their release to end by themselves; None for what guardians give.
        is_alone: whether its process is there for nothing else, so that it ends with the lease.
    """

    def __init__(self, *, asked_s: float | None = None, is_alone: bool = True) -> None:
        self._asked_s = asked_s
        self._own_pid = os.getpid() if is_alone else None
        self._charges: dict[int, Charge] = {}
        self._started: dict[int, int] = {}
        self._lease_s = 0.0
        self._guarding: Guarding | None = None
        self._calls: NodeCalls | None = None

    def guard(self, charges: Mapping[int, Charge], lease_s: float) -> None:
        """Take charge of ranks.

        Args:
            charges: by rank.
            lease_s: seconds after the last look until they are ended.
        """
        self._charges, self._lease_s = dict(charges), lease_s
        for charge in charges.values():
            self._started[charge.pid] = start_of(charge.pid)
        self._guarding = self._guard_anew()
        for directory in {charge.log.parent.parent for charge in charges.values()}:
            last_words.drop_old_logs(directory)

    def reach(self, actors: Mapping[int, Any], logs: Mapping[int, tuple[Any, ...]]) -> None:
        """Take the ranks' actors, to call them, and have each log to its file."""
        import ray

        self._calls = NodeCalls(actors)
        ray.get([actors[rank].log_to.remote(*arguments) for rank, arguments in logs.items()])

    def call(self, call: int, stage: str, method: str, batches: Batches) -> tuple[Answers, bool]:
        """See `NodeCalls.begin`."""
        assert self._calls is not None  # noqa: S101 - `reach` comes first
        return self._calls.begin(call, stage, method, batches)

    def more(self, call: int, stage: str) -> tuple[Answers, bool]:
        """See `NodeCalls.more`."""
        assert self._calls is not None  # noqa: S101 - `reach` comes first
        return self._calls.more(call, stage)

    def look(self) -> dict[int, Sight]:
        """See every rank of this node, and renew the lease."""
        assert self._guarding is not None  # noqa: S101 - `guard` comes first
        try:
            self._guarding.renew()
        except BrokenPipeError:  # it was killed itself
            self._guarding.abandon()
            self._guarding = self._guard_anew()
        return {rank: look_at(charge) for rank, charge in self._charges.items()}

    def _guard_anew(self) -> Guarding:
        marks = {charge.pid: charge.mark for charge in self._charges.values()}
        return Guarding(
            marks,
            started=self._started,
            lease=Lease(seconds=self._lease_s, renewed_by=self._own_pid),
            asked_s=self._asked_s,
        )

    def release(self) -> None:
        """End all ranks and what they started; returns when nothing is left."""
        guarding, self._guarding = self._guarding, None
        if guarding is not None:
            guarding.end()
            for charge in self._charges.values():  # of ranks that could not remove it themselves
                step_file(charge.log).unlink(missing_ok=True)
                if not last_words.read(stacks := last_words.stacks_file(charge.log)):
                    stacks.unlink(missing_ok=True)

    def stacks(self, ranks: Iterable[int]) -> dict[int, str]:
        """Where the threads of ranks stand, or stood when they crashed; see `last_words`."""
        charges = {rank: self._charges[rank] for rank in ranks}
        alive = {
            charge.pid: last_words.stacks_file(charge.log)
            for charge in charges.values()
            if not look_at(charge).is_gone
        }
        said = last_words.ask(alive)
        files = {rank: last_words.stacks_file(charge.log) for rank, charge in charges.items()}
        return {rank: said.get(path) or last_words.read(path) for rank, path in files.items()}


def look_at(charge: Charge) -> Sight:
    """See one rank."""
    fields = fields_of(charge.pid)
    if not fields:
        return Sight(state="")
    ticks = int(fields[11]) + int(fields[12])
    return Sight(
        state=fields[0].decode(),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        doing=read_step(step_file(charge.log)),
    )
