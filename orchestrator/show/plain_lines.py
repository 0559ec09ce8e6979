"""A launch as lines of text, for CI logs and Ray jobs: no cursor, no colours.

Invariant: the number of lines, and the length of each but for errors, has a bound that does not grow with the
number of ranks; while nothing else happens, lines come ever more rarely.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from warmrank.orchestrator.show import events
from warmrank.orchestrator.show.course import why_again
from warmrank.orchestrator.show.events import Event, RankClass
from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.show.folding import brief_names, brief_ranks
from warmrank.orchestrator.show.standing import Standing
from warmrank.worker.results import FunctionResult

MAX_LINES_SHOWN = 12
"""Classes of a plan, and kinds of results of a stage, that are told one by one."""

MAX_PROBLEMS_SHOWN = 20
MAX_ERROR_LINES = 30
FIRST_BEAT_S = 30.0
"""A stage that runs for so long tells how far it is; then after twice that time, and so on."""

_TOLD = frozenset({"compile", "load", "script"})
"""Stages whose results are told; what the others do to a function stands in the report."""


class PlainLines:
    """Prints what happens, equal things of many ranks in one line."""

    def __init__(self, console: Console, num_ranks: int) -> None:
        self._console = console
        self._standing = Standing(num_ranks=num_ranks)
        self._results: list[tuple[int, FunctionResult]] = []
        self._beat_s = FIRST_BEAT_S

    def __call__(self, event: Event) -> None:
        """Take an event in, and print what is worth a line."""
        known_problems = len(self._standing.problems)
        self._standing(event)
        match event:
            case events.AttemptStarted() if event.attempt > 1:
                self._line(f"attempt {event.attempt}, {why_again(event.attempt, event.reason)}")
            case events.Seated():
                nodes = count_text(self._standing.num_nodes, "node")
                self._line(f"{count_text(len(event.seats), 'rank')} on {nodes}: {self._hosts()}")
            case events.Planned():
                self._plan(event)
            case events.StageStarted():
                self._results.clear()
                self._beat_s = FIRST_BEAT_S
                self._line(f"{event.stage}: on {brief_ranks(event.ranks)}")
            case events.FunctionFinished() if event.stage in _TOLD:
                self._results.append((event.rank, event.result))
            case events.StageFinished():
                self._tell_results()
                self._line(f"{event.stage}: {event.seconds:.2f} s")
            case events.Audited() if event.outcome != "differs":  # which is a problem as well
                self._line(f"  {_audit_text(event)}")
            case events.Problem():
                self._problem(event.text, known_problems)
            case events.AttemptFailed():
                self._fail(event)
            case _:
                self._beat()

    def _hosts(self) -> str:
        return brief_names(self._standing.hosts())

    def _plan(self, event: events.Planned) -> None:
        again = f" again, round {event.round}" if event.round else ""
        lines = [_class_text(found) for found in event.classes]
        self._line(f"plan{again}: {count_text(len(lines), 'class')}")
        self._some(lines, "classes")

    def _tell_results(self) -> None:
        """What became of functions in this stage, equal fates together."""
        alike: dict[tuple[str, str, str], list[int]] = {}
        for rank, result in self._results:
            outcome = result.outcome if result.ok else "refused"
            alike.setdefault((result.function, outcome, result.reason), []).append(rank)
        self._results.clear()
        self._some(
            [
                f"{function} {outcome} on {brief_ranks(ranks)}" + (f" ({reason})" if reason else "")
                for (function, outcome, reason), ranks in alike.items()
            ],
            "kinds of results",
        )

    def _problem(self, text: str, known: int) -> None:
        if len(self._standing.problems) == known:
            return
        if known < MAX_PROBLEMS_SHOWN:
            self._line(f"problem: {text}")
        elif known == MAX_PROBLEMS_SHOWN:
            self._line("problem: further ones stand in the report")

    def _fail(self, event: events.AttemptFailed) -> None:
        self._tell_results()
        self._line(f"attempt {event.attempt} failed" + (f" in stage {event.stage}" if event.stage else ""))
        if event.is_last:
            return  # the error itself comes last of all, from whoever runs the launch
        self._some(event.text.splitlines(), "lines", limit=MAX_ERROR_LINES)

    def _beat(self) -> None:
        """Say how far a long stage is, and whom it waits for."""
        stage = self._standing.running
        if stage is None or self._standing.now_s - stage.start_s < self._beat_s:
            return
        seconds = self._standing.now_s - stage.start_s
        while self._beat_s <= seconds:
            self._beat_s *= 2
        waiting = stage.waiting_for()
        # Those at the rendezvous wait for the others themselves.
        late = tuple(rank for rank in waiting if not self._is_meeting(rank)) or waiting
        if late:
            self._line(
                f"{stage.stage}: {len(stage.ranks) - len(waiting)} of {count_text(len(stage.ranks), 'rank')} "
                f"after {seconds:.0f} s; waiting for {brief_ranks(late)}{self._doing(late[0])}"
            )

    def _is_meeting(self, rank: int) -> bool:
        busy = self._standing.busy.get(rank)
        return busy is not None and busy.doing == events.RENDEZVOUS

    def _doing(self, rank: int) -> str:
        busy, host = self._standing.busy.get(rank), self._standing.host(rank)
        where = f" on {host}" if host else ""
        return f"; rank {rank}{where}: {busy.doing}" if busy else ""

    def _some(self, lines: list[str], what: str, *, limit: int = MAX_LINES_SHOWN) -> None:
        for line in lines[:limit]:
            self._line(f"  {line}")
        if len(lines) > limit:
            self._line(f"  and {len(lines) - limit:,} more {what}, in the report")

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _audit_text(event: events.Audited) -> str:
    why = "as conditions say" if event.outcome == "guarded" else "and cannot have the artifact there"
    found = "equal" if event.outcome == "equal" else f"differs, {why}: {event.difference}"
    return f"{event.function} audited on {brief_ranks(event.ranks)}: {found} ({event.seconds:.2f} s)"


def _class_text(found: RankClass) -> str:
    by = f", compiled by rank {found.leader}" if found.leader is not None else ""
    audited = f", audited by {brief_ranks(found.auditors)}" if found.auditors else ""
    return f"{found.action} {found.function} on {brief_ranks(found.ranks)}{by}{audited}"
