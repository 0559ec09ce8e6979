"""One node's side of a launch: calls its ranks, and looks at them; a Ray actor that imports no torch.

Each look renews the lease of the node's reaper (`orchestrator.reaper`), which ends the ranks when looks stay
away, and then this process, so that nothing of a lost attempt stays on a node that nobody can reach. The
driver sends each node one message, not one for each rank: equal arguments cross once a node, and so do equal
answers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from warmrank.orchestrator.gang import rank_files
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.node_group import answer_of
from warmrank.orchestrator.gang.rank_files import read_step, step_file
from warmrank.orchestrator.reaper import fields_of, start_of
from warmrank.orchestrator.reaper_client import ReapedRanks

Batches = tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...]
"""Arguments, and the ranks that are called with them."""

Answers = tuple[tuple[Any, tuple[int, ...]], ...]
"""An answer, or a `WorkerFailure`, and the ranks that gave it."""

_TICK_S = 0.2
_MOST_COMPARED = 4


class Request(NamedTuple):
    """A call of a method of ranks' `RankHost`; ``number`` rises from call to call."""

    number: int
    stage: str
    method: str
    batches: Batches


class Said(NamedTuple):
    """A node's reply about a call: new answers, and the states of its ranks unless all have answered."""

    answers: Answers
    is_all: bool
    statuses: dict[int, ProcessStatus]


def batches_of(arguments: Mapping[int, tuple[Any, ...]]) -> Batches:
    """Ranks that are called with one and the same object together."""
    alike: dict[int, tuple[tuple[Any, ...], list[int]]] = {}
    for rank, values in arguments.items():
        alike.setdefault(id(values), (values, []))[1].append(rank)
    return tuple((values, tuple(ranks)) for values, ranks in alike.values())


def folded(answers: Sequence[tuple[int, Any]]) -> Answers:
    """Equal answers together, as long as few differ."""
    found: list[tuple[Any, list[int]]] = []
    for rank, answer in answers:
        same = next((ranks for value, ranks in found[:_MOST_COMPARED] if value == answer), None)
        if same is None:
            found.append((answer, [rank]))
        else:
            same.append(rank)
    return tuple((value, tuple(ranks)) for value, ranks in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A rank as its node knows it: its process, its mark (`orchestrator.reaper.MARK`) and its log file."""

    pid: int
    mark: str
    log: Path


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
        self._actors: dict[int, Any] = {}
        self._open: tuple[int, str, dict[Any, int]] = 0, "", {}  # a call, and ranks that have not answered

    def guard(self, charges: Mapping[int, Charge], lease_s: float, wait_s: float) -> None:
        """Take charge of ranks, which are ended ``lease_s`` after the last look; `more` takes ``wait_s``."""
        self._charges, self._lease_s, self._wait_s = dict(charges), lease_s, wait_s
        for charge in charges.values():
            self._started[charge.pid] = start_of(charge.pid)
        self._reaper = self._start_reaper()
        for directory in {charge.log.parent.parent for charge in charges.values()}:
            rank_files.drop_old_logs(directory)

    def reach(self, actors: Mapping[int, Any], logs: Mapping[int, tuple[Any, ...]]) -> None:
        """Take the ranks' actors, to call them, and have each log to its file."""
        import ray

        self._actors = dict(actors)
        ray.get([actors[rank].log_to.remote(*arguments) for rank, arguments in logs.items()])

    def call(self, request: Request) -> Said:
        """Begin a call; see `more`. What the one before left open is dropped."""
        pending = {
            self._actors[rank].call.remote(rank, request.stage, request.method, *values): rank
            for values, ranks in request.batches
            for rank in ranks
        }
        self._open = request.number, request.stage, pending
        return self.more(request.number)

    def more(self, number: int) -> Said:
        """Wait a while for the ranks that have not answered, then look at them; renews the lease.

        Returns soon after the first answer: it may be a failure, or come in the last moment.
        """
        import ray

        opened, stage, pending = self._open
        if opened != number:
            return Said((), True, {})  # the driver has gone on to another call
        found: list[tuple[int, Any]] = []
        deadline = time.monotonic() + self._wait_s
        while pending and not found and time.monotonic() < deadline:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_TICK_S)
            found = [(rank, answer_of(ref, rank, stage)) for ref in ready for rank in (pending.pop(ref),)]
        statuses = self.look()
        return Said(folded(found), not pending, statuses if pending else {})

    def look(self) -> dict[int, ProcessStatus]:
        """See every rank of this node, and renew the lease."""
        self._renew()
        return {rank: look_at(charge) for rank, charge in self._charges.items()}

    def _renew(self) -> None:
        with self._renewing:  # a second reaper would get no word, and end all ranks
            if self._reaper is None:
                return  # released meanwhile
            try:
                self._reaper.renew()
            except BrokenPipeError:  # it was killed itself
                self._reaper.abandon()
                self._reaper = self._start_reaper()

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
                step_file(charge.log).unlink(missing_ok=True)
                if not rank_files.read_stacks(stacks := rank_files.stacks_file(charge.log)):
                    stacks.unlink(missing_ok=True)

    def stacks(self, ranks: Iterable[int]) -> dict[int, str]:
        """The stacks of ranks' threads, now or at their crash; see `rank_files`."""
        charges = {rank: self._charges[rank] for rank in ranks}
        files = {rank: rank_files.stacks_file(charge.log) for rank, charge in charges.items()}
        alive = {each.pid: files[rank] for rank, each in charges.items() if not look_at(each).is_gone}
        said = rank_files.ask_stacks(alive)
        return {rank: said.get(path) or rank_files.read_stacks(path) for rank, path in files.items()}


def look_at(charge: Charge) -> ProcessStatus:
    """See one rank."""
    fields = fields_of(charge.pid)
    if not fields:
        return ProcessStatus(state="")
    ticks = int(fields[11]) + int(fields[12])
    return ProcessStatus(
        state=fields[0].decode(),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        doing=read_step(step_file(charge.log)),
    )
