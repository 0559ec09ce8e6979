"""What to do after a launch: a pure function of its report; after one that failed, see `advice_failed`.

Invariant: every step follows from something that stands in the report, and names it.
"""

from __future__ import annotations

import shlex

from warmrank.orchestrator.show.advice_failed import Level, Step, failure_steps
from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.show.folding import brief_names, brief_ranks
from warmrank.orchestrator.show.report import Report, config_words
from warmrank.orchestrator.show.slow_ranks import slow_ranks

MAX_REASONS = 4
ENVIRONMENT_DIFFERS = "another environment than rank 0"
"""How the problem begins that a launch notes for ranks in different environments."""

_OF_SIGNATURES = ("unsigned", "signature", "signing key", "unknown_signer")


def next_steps(report: Report) -> tuple[Step, ...]:
    """What to do, the urgent first."""
    found = [
        *failure_steps(report),
        *_queued(report),
        *_places(report),
        *_environments(report),
        *_signatures(report),
        *_audits(report),
        *_nondeterministic(report),
        *_attempts(report),
        *_slow(report),
        *_compiled(report),
        *_warm(report),
    ]
    order: tuple[Level, ...] = ("do", "look", "good")
    return tuple(sorted(found, key=lambda step: order.index(step.level)))


def _queued(report: Report) -> list[Step]:
    if not report.queued_on:
        return []
    waiting = count_text(report.totals.num_queued, "partition")
    *others, last = report.queued_on
    order = f"on {brief_names(others)}, and then on {last}" if others else f"on {last}"
    return [
        Step(
            level="do",
            title=f"{waiting} wait to be published",
            text=f"The store was away. When it answers again, run this {order}.",
            command=f"warmrank publish {config_words(report)} --set "
            + shlex.quote(f"cache_dir={report.cache_dir}"),
        )
    ]


def _places(report: Report) -> list[Step]:
    return [
        Step(
            level="look",
            title=f"The store's place {tier.location} was away",
            text=f"The launch went on without it: {tier.reason}",
            command=f"warmrank doctor {config_words(report)} --all-nodes",
        )
        for tier in report.tiers
        if tier.state == "away"
    ]


def _environments(report: Report) -> list[Step]:
    found = [problem for problem in report.problems if ENVIRONMENT_DIFFERS in problem]
    if not found:
        return []
    more = f"\nAnd {len(found) - MAX_REASONS} more." if len(found) > MAX_REASONS else ""
    return [
        Step(
            level="look",
            title="Nodes differ in their environment",
            text="Ranks in different environments share no artifacts, so each kind compiles its own:\n"
            + "\n".join(found[:MAX_REASONS])
            + more,
            command=f"warmrank doctor {config_words(report)} --all-nodes",
        )
    ]


def _signatures(report: Report) -> list[Step]:
    found = [problem for problem in report.problems if any(word in problem for word in _OF_SIGNATURES)]
    if not found:
        return []
    return [
        Step(
            level="do",
            title="Artifacts are not signed, or not by whom this launch trusts",
            text="\n".join(found[:MAX_REASONS]) + "\nAn artifact is code: sign what is shared.",
            command="warmrank keys list",
        )
    ]


def _audits(report: Report) -> list[Step]:
    found = [audit for audit in report.course.audits if audit.outcome == "differs"]
    if not found:
        return []
    lines = [
        f"{audit.function} on {brief_ranks(audit.ranks, max_runs=3)}, unlike rank {audit.leader}: "
        f"{audit.difference}"
        for audit in found[:MAX_REASONS]
    ]
    text = (
        "\n".join(lines) + "\nThese ranks compiled for themselves, so the launch is right; nothing of these "
        "functions is stored. Hand what differs from rank to rank to the function as an argument, or keep it "
        "as an attribute of the module; or report it as a bug of warmrank."
    )
    return [Step(level="do", title="Traces differ from rank to rank behind all conditions", text=text)]


def _nondeterministic(report: Report) -> list[Step]:
    if not report.nondeterministic:
        return []
    names = brief_names(
        f"{found.function} ({brief_ranks(found.ranks, max_runs=3)})" for found in report.nondeterministic
    )
    text = (
        f"{names}: compiled to other bytes than the store holds for the same request. The launch is right, "
        "but the store holds more than it needs. Look for what the trace takes from time, chance or the host."
    )
    return [Step(level="look", title="Compiles that are not deterministic", text=text)]


def _attempts(report: Report) -> list[Step]:
    failed = [attempt for attempt in report.course.attempts if attempt.error]
    if not failed or report.outcome != "warm":
        return []
    lines = [
        f"Attempt {attempt.attempt} failed in {attempt.failed_stage or 'no stage'}: "
        f"{attempt.error.splitlines()[0]}"
        for attempt in failed
    ]
    title = f"It took {count_text(len(report.course.attempts), 'attempt')}"
    return [Step(level="look", title=title, text="\n".join(lines))]


def _slow(report: Report) -> list[Step]:
    return [
        Step(
            level="look",
            title=f"Rank {slow.rank} was slow in {slow.stage}" + (f" on {slow.host}" if slow.host else ""),
            text=f"It took {slow.seconds:.1f} s, half of the ranks at most {slow.median_s:.1f} s; "
            "all of them waited for it.",
            command=f"warmrank doctor {config_words(report)} --all-nodes",
        )
        for slow in slow_ranks(report.course, report.ranks)[:3]
    ]


def _compiled(report: Report) -> list[Step]:
    reasons: dict[str, dict[str, None]] = {}
    for rank in report.ranks:
        for function in rank.functions:
            if function.outcome == "compiled":
                reasons.setdefault(function.reason or "no reason given", {})[function.function] = None
    if not reasons or report.outcome != "warm":
        return []
    lines = [f"{brief_names(names)}: {reason}" for reason, names in list(reasons.items())[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        lines.append(f"And {len(reasons) - MAX_REASONS} more reasons, below.")
    compiled = count_text(report.totals.num_compiled, "function")
    if report.record:
        title = f"The next launch loads what was compiled now ({compiled})"
        command = f"warmrank launch {config_words(report)} --no-compile"
        text = "It was compiled because nothing stored fitted:\n" + "\n".join(lines)
        return [Step(level="good", title=title, text=text, command=command)]
    if report.store:
        return [Step(level="look", title=f"Why {compiled} had to be compiled", text="\n".join(lines))]
    lines.append("Without a store only these nodes load it again; `store:` in the config shares it with all.")
    return [
        Step(level="look", title=f"{compiled} compiled, and kept on these nodes only", text="\n".join(lines))
    ]


def _warm(report: Report) -> list[Step]:
    if report.outcome != "warm" or report.totals.num_compiled:
        return []
    text = "With --no-compile a launch fails rather than compile, which guards that it stays so."
    return [
        Step(
            level="good",
            title="Nothing was compiled",
            text=text,
            command=f"warmrank launch {config_words(report)} --no-compile",
        )
    ]
