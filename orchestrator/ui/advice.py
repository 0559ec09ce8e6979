"""Next steps after a launch: a pure function of its report.

Invariants: every step follows from a field of the report, never from the wording of a message; what is to be
done says how; the log that a failure's step names is that of a rank that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from warmrank.cache_store.text import changed_components
from warmrank.orchestrator.errors import policy_of
from warmrank.orchestrator.launch.report import Failure, Report, config_words
from warmrank.orchestrator.signals import EXIT_INTERRUPTED, EXIT_TERMINATED
from warmrank.orchestrator.text import brief_names, brief_ranks, count_text, first_lines, grouped
from warmrank.orchestrator.ui.report_table import publish_command

Level = Literal["do", "look", "good"]
_ORDER: tuple[Level, ...] = ("do", "look", "good")

MAX_LINES = 4
MAX_REMEDIES = 6
_NO_RECORD = (
    "There is no record of this launch in the store. What was compiled stays on its nodes, so that another "
    "launch on them compiles only what is left."
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, to look at, or to be glad of."""

    level: Level  # wrong until it is done; worth a look; nothing to do
    title: str  # what it is about
    text: str  # why, and how
    command: str = ""  # to be run; empty for none


def next_steps(report: Report) -> tuple[Step, ...]:
    """The steps to take, the urgent first."""
    failed = _failed(report, report.failure) if report.failure else ()
    found = (*failed, *_store(report), *_traces(report), *_compiled(report))
    return tuple(sorted(found, key=lambda step: _ORDER.index(step.level)))


def _failed(report: Report, failure: Failure) -> Iterator[Step]:
    """A step for each remedy, with the log of a rank that failed; what has none tells the error itself."""
    if report.exit_code in {EXIT_INTERRUPTED, EXIT_TERMINATED}:
        yield Step("look", "The launch was stopped", f"{failure.message}. {_NO_RECORD}")
        return
    if not failure.causes:
        title = re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", failure.kind)
        yield Step("do", title, policy_of(failure.kind).remedy or failure.message)
    logs = {rank.rank: f"{rank.log} of rank {rank.rank} on {rank.host}" for rank in report.ranks if rank.log}
    ranks = grouped(
        ((cause.kind, cause.remedy or f"{cause.message}\nCorrect what raised it, and launch again."), rank)
        for cause in failure.causes
        for rank in cause.ranks
    )
    for (kind, text), members in list(ranks.items())[:MAX_REMEDIES]:
        log = next((logs[rank] for rank in members if rank in logs), "")
        yield Step("do", f"{kind} on {brief_ranks(members)}", text + (f"\nLog: {log}." if log else ""))
    yield Step("look", "Nothing was committed", _NO_RECORD)


def _store(report: Report) -> Iterator[Step]:
    """What the store lacks, and nodes that share nothing in it."""
    several = " --all-nodes" if len({rank.node_rank for rank in report.ranks}) > 1 else ""
    doctor = f"warmrank doctor {config_words(report)}{several}"
    if report.queued_on:
        where, command = publish_command(report)
        waiting = count_text(report.totals.num_queued, "partition")
        text = f"The store was away. When it answers again, run this {where}."
        yield Step("do", f"Not published yet: {waiting}", text, command)
    for tier in report.tiers:
        if tier.state == "away":
            text = f"The launch went on without it: {tier.reason}"
            yield Step("look", f"The store's place {tier.location} was away", text, doctor)
    if report.unsigned:
        title = "Artifacts are not signed, though signatures are asked for"
        text = f"{report.unsigned}\nAn artifact is code: sign what is shared."
        yield Step("do", title, text, "warmrank keys list")
    others = [
        f"{brief_ranks(other.ranks)}: "
        + "; ".join(map(str, changed_components(report.environment, other.environment)))
        for other in report.other_environments
    ]
    if others:
        text = "Ranks in different environments share no artifacts, so each kind compiles its own:\n"
        yield Step("look", "Nodes differ in their environment", text + _joined(others), doctor)


def _traces(report: Report) -> Iterator[Step]:
    """Traces and compiles that came out differently where they should not."""
    differing = [
        f"{audit.function} on {brief_ranks(audit.ranks, max_runs=3)}, unlike rank {audit.leader}: "
        f"{audit.difference}"
        for audit in report.course.audits
        if audit.outcome == "differs"
    ]
    if differing:
        text = (
            f"{_joined(differing)}\nThese ranks compiled for themselves, so the launch is right; nothing of "
            "these functions is stored. Hand what differs from rank to rank to the function as an argument, "
            "or keep it as an attribute of the module; or report it as a bug of warmrank."
        )
        yield Step("do", "Traces differ from rank to rank behind all conditions", text)
    if report.nondeterministic:
        names = brief_names(
            f"{found.function} ({brief_ranks(found.ranks, max_runs=3)})" for found in report.nondeterministic
        )
        text = (
            f"{names}: compiled to other bytes than the store holds for the same request. The launch is "
            "right, but the store holds more than it needs. Look for what the trace takes from time, chance "
            "or the host."
        )
        yield Step("look", "Compiles that are not deterministic", text)


def _compiled(report: Report) -> Iterator[Step]:
    """Why a warm launch compiled, and whether the next one will."""
    if report.outcome != "warm":
        return
    again = f"warmrank launch {config_words(report)} --no-compile"
    reasons = grouped(
        (function.reason or "no reason given", function.function)
        for rank in report.ranks
        for function in rank.functions
        if function.outcome == "compiled"
    )
    if not reasons:
        text = "With --no-compile a launch fails rather than compile, which guards that it stays so."
        yield Step("good", "Nothing was compiled", text, again)
        return
    text = _joined(f"{brief_names(names)}: {reason}" for reason, names in reasons.items())
    compiled = count_text(report.totals.num_compiled, "function")
    if report.record:
        text = f"It was compiled because nothing stored fitted:\n{text}"
        yield Step("good", f"The next launch loads what was compiled now ({compiled})", text, again)
    elif report.store:
        yield Step("look", f"Why {compiled} had to be compiled", text)
    else:
        text += "\nWithout a store only these nodes load it again; `store:` in the config shares it with all."
        yield Step("look", f"{compiled} compiled, and kept on these nodes only", text)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(first_lines(lines, max_lines=MAX_LINES))
