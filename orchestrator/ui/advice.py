"""Next steps after a launch: a pure function of its report.

Invariants: every step follows from a field of the report, never from the wording of a message; what is to be
done says how; the log that a failure's step names is that of a rank that failed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from warmrank.cache_store.text import changed_components
from warmrank.orchestrator.causes import Cause, policy_of
from warmrank.orchestrator.launch.report import Report, config_words
from warmrank.orchestrator.signals import EXIT_INTERRUPTED, EXIT_TERMINATED
from warmrank.orchestrator.text import brief_names, brief_ranks, count_text, first_lines, grouped

Level = Literal["do", "look", "good"]

MAX_LINES = 4
MAX_REMEDIES = 6
_ORDER: tuple[Level, ...] = ("do", "look", "good")

_NO_RECORD = "There is no record of this launch in the store."
_KEPT = "What was compiled stays on its nodes, so that another launch on them compiles only what is left."


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do, to look at, or to be glad of."""

    level: Level  # wrong until it is done; worth a look; nothing to do
    title: str  # what it is about
    text: str  # why, and how
    command: str = ""  # to be run; empty for none


def next_steps(report: Report) -> tuple[Step, ...]:
    """The steps to take, the urgent first."""
    advisers = (_failure, _queued, _places, _environments, _unsigned, _audits, _nondeterministic)
    found = [step for adviser in (*advisers, _compiled, _warm) for step in adviser(report)]
    return tuple(sorted(found, key=lambda step: _ORDER.index(step.level)))


def publish_command(report: Report) -> tuple[str, str]:
    """On which hosts what waits is to be published, in which order, and by which command."""
    *others, last = report.queued_on
    where = f"on {brief_names(others)}, and then on {last}" if others else f"on {last}"
    return where, f"warmrank store publish {config_words(report)} --set " + shlex.quote(
        f"cache_dir={report.cache_dir}"
    )


def _failure(report: Report) -> Iterator[Step]:
    """Causes of the failure with their remedies; nothing for a warm launch."""
    failure = report.failure
    if failure is None:
        return
    kept = f"{_NO_RECORD} {_KEPT}" if _has_compiled(report) else _NO_RECORD
    if report.exit_code in {EXIT_INTERRUPTED, EXIT_TERMINATED}:
        yield Step(level="look", title="The launch was stopped", text=f"{failure.message}. {kept}")
        return
    yield from _causes(report, failure.causes)
    if not failure.causes:
        title = re.sub(r"(?<=[a-z])[A-Z]", lambda found: f" {found[0].lower()}", failure.kind)
        yield Step(level="do", title=title, text=policy_of(failure.kind).remedy or failure.message)
    yield Step(level="look", title="Nothing was committed", text=kept)


def _causes(report: Report, causes: Sequence[Cause]) -> Iterator[Step]:
    """A step for each remedy; beside them, or in place of one, the log of a rank that failed."""
    ranks = grouped(
        ((cause.kind, cause.remedy or cause.message, bool(cause.remedy)), rank)
        for cause in causes
        for rank in cause.ranks
    )
    for (kind, text, has_remedy), members in list(ranks.items())[:MAX_REMEDIES]:
        log = _first_log(report, members)
        read = f"Read {log}. " if log else ""
        more = "" if has_remedy else f"\n{read}Correct what raised it, and launch again."
        title = f"{'' if has_remedy else 'Correct '}{kind} on {brief_ranks(members)}"
        yield Step(level="do", title=title, text=text + more)
    log = _first_log(report, [rank for cause in causes for rank in cause.ranks])
    if log and all(cause.remedy for cause in causes):
        text = f"Each rank writes a log on its node: {log}."
        yield Step(level="look", title="Read the log of a rank that failed", text=text)


def _first_log(report: Report, ranks: Iterable[int]) -> str:
    """The log of the first of these ranks that has one, and where it lies; empty where none has."""
    found = {rank.rank: rank for rank in report.ranks if rank.log}
    rank = next((found[each] for each in ranks if each in found), None)
    return f"{rank.log} of rank {rank.rank} on {rank.host}" if rank else ""


def _has_compiled(report: Report) -> bool:
    """True if some rank had compiled, as far as is known: of a script nothing is."""
    if report.totals.num_compiled:
        return True
    failure = report.failure
    causes = failure.causes if failure and failure.stage == "compile" else ()
    failed = {rank for cause in causes for rank in cause.ranks}
    return any(
        rank not in failed and (span.ok or end_s < span.end_s)
        for span in report.course.timeline
        if span.stage == "compile"
        for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True)
    )


def _queued(report: Report) -> Iterator[Step]:
    if report.queued_on:
        where, command = publish_command(report)
        yield Step(
            level="do",
            title=f"Not published yet: {count_text(report.totals.num_queued, 'partition')}",
            text=f"The store was away. When it answers again, run this {where}.",
            command=command,
        )


def _places(report: Report) -> Iterator[Step]:
    for tier in report.tiers:
        if tier.state == "away":
            title = f"The store's place {tier.location} was away"
            text = f"The launch went on without it: {tier.reason}"
            yield Step(level="look", title=title, text=text, command=_doctor_command(report))


def _doctor_command(report: Report) -> str:
    several = " --all-nodes" if len({rank.node_rank for rank in report.ranks}) > 1 else ""
    return f"warmrank doctor {config_words(report)}{several}"


def _environments(report: Report) -> Iterator[Step]:
    lines = [
        f"{brief_ranks(other.ranks)}: "
        + "; ".join(map(str, changed_components(report.environment, other.environment)))
        for other in report.other_environments
    ]
    if lines:
        yield Step(
            level="look",
            title="Nodes differ in their environment",
            text="Ranks in different environments share no artifacts, so each kind compiles its own:\n"
            + _joined(lines),
            command=_doctor_command(report),
        )


def _unsigned(report: Report) -> Iterator[Step]:
    if report.unsigned:
        yield Step(
            level="do",
            title="Artifacts are not signed, though signatures are asked for",
            text=f"{report.unsigned}\nAn artifact is code: sign what is shared.",
            command="warmrank keys list",
        )


def _audits(report: Report) -> Iterator[Step]:
    lines = [
        f"{audit.function} on {brief_ranks(audit.ranks, max_runs=3)}, unlike rank {audit.leader}: "
        f"{audit.difference}"
        for audit in report.course.audits
        if audit.outcome == "differs"
    ]
    if lines:
        text = (
            f"{_joined(lines)}\nThese ranks compiled for themselves, so the launch is right; nothing of "
            "these functions is stored. Hand what differs from rank to rank to the function as an argument, "
            "or keep it as an attribute of the module; or report it as a bug of warmrank."
        )
        yield Step(level="do", title="Traces differ from rank to rank behind all conditions", text=text)


def _nondeterministic(report: Report) -> Iterator[Step]:
    names = brief_names(
        f"{found.function} ({brief_ranks(found.ranks, max_runs=3)})" for found in report.nondeterministic
    )
    if names:
        text = (
            f"{names}: compiled to other bytes than the store holds for the same request. The launch is "
            "right, but the store holds more than it needs. Look for what the trace takes from time, chance "
            "or the host."
        )
        yield Step(level="look", title="Compiles that are not deterministic", text=text)


def _compiled(report: Report) -> Iterator[Step]:
    reasons = grouped(
        (function.reason or "no reason given", function.function)
        for rank in report.ranks
        for function in rank.functions
        if function.outcome == "compiled"
    )
    if not reasons or report.outcome != "warm":
        return
    text = _joined(f"{brief_names(names)}: {reason}" for reason, names in reasons.items())
    compiled = count_text(report.totals.num_compiled, "function")
    if report.record:
        yield Step(
            level="good",
            title=f"The next launch loads what was compiled now ({compiled})",
            text=f"It was compiled because nothing stored fitted:\n{text}",
            command=f"warmrank launch {config_words(report)} --no-compile",
        )
    elif report.store:
        yield Step(level="look", title=f"Why {compiled} had to be compiled", text=text)
    else:
        text += "\nWithout a store only these nodes load it again; `store:` in the config shares it with all."
        yield Step(level="look", title=f"{compiled} compiled, and kept on these nodes only", text=text)


def _warm(report: Report) -> Iterator[Step]:
    if report.outcome == "warm" and not report.totals.num_compiled:
        text = "With --no-compile a launch fails rather than compile, which guards that it stays so."
        command = f"warmrank launch {config_words(report)} --no-compile"
        yield Step(level="good", title="Nothing was compiled", text=text, command=command)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(first_lines(lines, max_lines=MAX_LINES))
