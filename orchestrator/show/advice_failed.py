"""What to do after a launch that failed: a pure function of its report.

Invariant: every step that is to be done says how; the log that it names is that of a rank that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from warmrank.orchestrator.show.folding import brief_ranks
from warmrank.orchestrator.show.report import Report
from warmrank.orchestrator.signals import EXIT_INTERRUPTED, EXIT_TERMINATED

Level = Literal["do", "look", "good"]

MAX_REMEDIES = 6

_NO_RECORD = "There is no record of this launch in the store."
_KEPT = "What was compiled stays on its nodes, so that another launch on them compiles only what is left."


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do, to look at, or to be glad of.

    Attributes:
        level: ``do``: something is wrong until it is done; ``look``: worth a look; ``good``: nothing to do.
        title: what it is about.
        text: why, and how.
        command: to be run; empty for none.
    """

    level: Level
    title: str
    text: str
    command: str = ""


def failure_steps(report: Report) -> list[Step]:
    """Why it failed, cause by cause with what to do about it; nothing for a warm launch."""
    failure = report.failure
    if failure is None:
        return []
    kept = f"{_NO_RECORD} {_KEPT}" if _has_compiled(report) else _NO_RECORD
    if report.exit_code in {EXIT_INTERRUPTED, EXIT_TERMINATED}:
        return [Step(level="look", title="The launch was stopped", text=f"{failure.message}. {kept}")]
    steps = _of_causes(report) or [
        Step(level="do", title=_words(failure.kind), text=_remedy(failure.message))
    ]
    return [*steps, *_log(report), Step(level="look", title="Nothing was committed", text=kept)]


def _of_causes(report: Report) -> list[Step]:
    """A step for each remedy; causes that have none are told with their logs, which say more."""
    causes = report.failure.causes if report.failure else ()
    ranks: dict[tuple[str, str, bool], list[int]] = {}
    for cause in causes:
        key = (cause.kind, cause.remedy or cause.message, bool(cause.remedy))
        ranks.setdefault(key, []).extend(cause.ranks)
    return [
        Step(
            level="do",
            title=f"{'' if has_remedy else 'Correct '}{kind} on {brief_ranks(members)}",
            text=text if has_remedy else f"{text}\n{_by_log(report, members)}",
        )
        for (kind, text, has_remedy), members in list(ranks.items())[:MAX_REMEDIES]
    ]


def _by_log(report: Report, ranks: Iterable[int]) -> str:
    """What to do where nothing but the ranks themselves can know."""
    found = _first_log(report, ranks)
    read = f"Read {found}. " if found else ""
    return f"{read}Correct what raised it, and launch again."


def _log(report: Report) -> list[Step]:
    causes = report.failure.causes if report.failure else ()
    found = _first_log(report, [rank for cause in causes for rank in cause.ranks])
    if not found or not all(cause.remedy for cause in causes):
        return []  # of causes without a remedy it is told already
    text = f"Each rank writes a log on its node: {found}."
    return [Step(level="look", title="Read the log of a rank that failed", text=text)]


def _first_log(report: Report, ranks: Iterable[int]) -> str:
    """The log of the first of these ranks that has one, and where it lies; empty where none has."""
    found = {rank.rank: rank for rank in report.ranks if rank.log}
    rank = next((found[each] for each in ranks if each in found), None)
    return f"{rank.log} of rank {rank.rank} on {rank.host}" if rank else ""


def _has_compiled(report: Report) -> bool:
    """Whether some rank had compiled something, as far as is known: of what a script did, nothing is."""
    if report.totals.num_compiled:
        return True
    failure = report.failure
    causes = failure.causes if failure and failure.stage == "compile" else ()
    failed = {rank for cause in causes for rank in cause.ranks}
    for span in report.course.timeline:
        if span.stage != "compile":
            continue
        ends = zip(span.ranks, span.rank_end_s, strict=True)
        if any(rank not in failed and (span.ok or end_s < span.end_s) for rank, end_s in ends):
            return True
    return False


def _words(kind: str) -> str:
    """The name of an error's type as words: ``CannotStart`` -> ``Cannot start``."""
    return re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", kind)


def _remedy(message: str) -> str:
    """The lines of an error that say what to do; all of it where none does."""
    lines = [line.strip() for line in message.splitlines()]
    found = [line.removeprefix("remedy: ") for line in lines if line.startswith("remedy: ")]
    return "\n".join(found) or message
