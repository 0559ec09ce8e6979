"""One node's side of a launch: calls its ranks, and looks at them; a Ray actor that imports no torch.

Each look renews the lease of the node's reaper (`orchestrator.reaper`), which ends the ranks when looks stay
away, and then this process, so that nothing of a lost attempt stays on a node that nobody can reach. The
driver sends each node one message, not one for each rank: what is one object in it crosses once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from warmrank.orchestrator.gang import rank_files
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.node_group import answer_of
from warmrank.orchestrator.reaper import fields_of, start_of
from warmrank.orchestrator.reaper_client import ReapedRanks

_TICK_S = 0.2
_MOST_COMPARED = 4


class Said(NamedTuple):
    """A node's reply about a call: new answers by rank, and states of its ranks unless all have answered."""

    answers: dict[int, Any]
    is_all: bool
    statuses: dict[int, ProcessStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A rank as its node knows it: process, mark (`orchestrator.reaper.MARK`), log file and actor."""

    pid: int
    mark: str
    log: Path
    actor: Any = None


class NodeWatch:
    """Calls the ranks of one node, looks at them, and keeps their reaper.

    ``asked_s`` is how long ranks have at their release to end by themselves. A process that ``is_alone``,
    there for nothing else, ends with the lease.
    """

    def __init__(self, *, asked_s: float = 2.0, is_alone: bool = True) -> None:
        self._asked_s = asked_s
        self._own_pid = os.getpid() if is_alone else None
        self._charges: dict[int, Charge] = {}
        self._started: dict[int, int] = {}
        self._lease_s = self._wait_s = 0.0
        self._reaper: ReapedRanks | None = None
        self._renewing = threading.Lock()
        self._open: tuple[int, str, dict[Any, int]] = 0, "", {}  # a call, and ranks that have not answered

    def guard(
        self, charges: Mapping[int, Charge], lease_s: float, wait_s: float, cache_dir: Path = Path()
    ) -> None:
        """Take charge of ranks, which are ended ``lease_s`` after the last look; `more` takes ``wait_s``.

        Those with an actor have their log in a file from now on.
        """
        import ray

        self._charges, self._lease_s, self._wait_s = dict(charges), lease_s, wait_s
        self._started = {charge.pid: start_of(charge.pid) for charge in charges.values()}
        self._reaper = self._start_reaper()
        for directory in {charge.log.parent.parent for charge in charges.values()}:
            rank_files.drop_old_logs(directory)
        called = {rank: charge for rank, charge in charges.items() if charge.actor is not None}
        if called:
            ray.get([each.actor.log_to.remote(rank, cache_dir, each.log) for rank, each in called.items()])

    def call(self, number: int, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> Said:
        """Begin a call of ranks' `RankHost`; see `more`. What the one before left open is dropped."""
        pending = {
            self._charges[rank].actor.call.remote(rank, stage, method, *values): rank
            for rank, values in arguments.items()
        }
        self._open = number, stage, pending
        return self.more(number)

    def more(self, number: int) -> Said:
        """Wait a while for the ranks that have not answered, then look at them; renews the lease.

        Returns soon after the first answer: it may be a failure, or come in the last moment.
        """
        import ray

        opened, stage, pending = self._open
        found: dict[int, Any] = {}
        if opened != number:
            return Said(found, True, {})  # the driver has gone on to another call
        deadline = time.monotonic() + self._wait_s
        while pending and not found and time.monotonic() < deadline:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_TICK_S)
            for ref in ready:
                rank = pending.pop(ref)
                answer = answer_of(ref, rank, stage)
                known = islice(found.values(), _MOST_COMPARED)  # equal answers become one object
                found[rank] = next((each for each in known if each == answer), answer)
        statuses = self.look()
        return Said(found, not pending, statuses if pending else {})

    def look(self) -> dict[int, ProcessStatus]:
        """See every rank of this node, and renew the lease."""
        with self._renewing:  # a second reaper would get no word, and end all ranks
            if (reaper := self._reaper) is not None:  # else they were released meanwhile
                try:
                    reaper.renew()
                except BrokenPipeError:  # it was killed itself
                    reaper.abandon()
                    self._reaper = self._start_reaper()
        return {rank: look_at(charge) for rank, charge in self._charges.items()}

    def _start_reaper(self) -> ReapedRanks:
        marks = {charge.pid: charge.mark for charge in self._charges.values()}
        lease = self._lease_s, self._own_pid
        return ReapedRanks(marks, started=self._started, lease=lease, asked_s=self._asked_s)

    def release(self) -> None:
        """End all ranks and what they started; returns when nothing is left."""
        with self._renewing:
            reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.end()
            for charge in self._charges.values():  # of ranks that could not remove it themselves
                rank_files.step_file(charge.log).unlink(missing_ok=True)
                if not rank_files.read_bytes(stacks := rank_files.stacks_file(charge.log)):
                    stacks.unlink(missing_ok=True)

    def stacks(self, ranks: Iterable[int]) -> dict[int, str]:
        """The stacks of ranks' threads, now or at their crash; see `rank_files`."""
        charges = {rank: self._charges[rank] for rank in ranks}
        files = {rank: rank_files.stacks_file(charge.log) for rank, charge in charges.items()}
        rank_files.ask_stacks(
            {each.pid: files[rank] for rank, each in charges.items() if not look_at(each).is_gone}
        )
        return {rank: rank_files.read_stacks(path) for rank, path in files.items()}


def look_at(charge: Charge) -> ProcessStatus:
    """See one rank."""
    fields = fields_of(charge.pid)
    if not fields:
        return ProcessStatus(state="")
    return ProcessStatus(
        state=fields[0].decode(),
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        doing=rank_files.read_step(rank_files.step_file(charge.log)),
    )
