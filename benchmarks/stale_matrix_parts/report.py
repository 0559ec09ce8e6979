"""The outcomes of ``benchmarks/stale_matrix.py`` in words: verdicts, tables, counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from benchmarks.stale_matrix_parts.cases import SKIPPED
from benchmarks.stale_matrix_parts.launches import Line

WRONG, RIGHT, OLD, NOTICES, ERROR = (
    "wrong result",
    "loads; right",
    "loads the old graph; right here",
    "compiles anew; right",
    "error",
)
_MAX_REASON_CHARS = 76
_DIGEST = re.compile(r", [0-9a-f]{16}\b")


def alone(line: Line) -> str:
    """What TorchAir by itself makes of a case: one of the verdicts above."""
    outcome = line.alone
    if outcome.outcome not in ("loaded", "compiled"):
        return ERROR
    if outcome.wrong:
        return WRONG
    if outcome.outcome == "compiled":
        return NOTICES
    return RIGHT if line.case.same else OLD


def fault(line: Line) -> str:
    """What is not as it must be in warmrank's outcome; empty if all is well."""
    outcome, case = line.ours, line.case
    if outcome.wrong or outcome.outcome not in ("loaded", "compiled"):
        return f"{outcome.outcome}: {outcome.wrong or outcome.detail}"
    if case.same:
        return "" if outcome.outcome == "loaded" else f"needless miss: {outcome.detail}"
    if outcome.outcome == "loaded":
        return "the old graph was loaded"
    return "" if re.search(case.reason, outcome.detail) else f"another reason: {outcome.detail}"


def counts(lines: Sequence[Line]) -> dict[str, int]:
    """How often each verdict was given, and warmrank's faults."""
    found = dict.fromkeys((WRONG, ERROR, OLD, NOTICES, RIGHT), 0)
    for line in lines:
        found[alone(line)] += 1
    return {**found, "faults of warmrank": sum(bool(fault(line)) for line in lines)}


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The lines of a table in Markdown; a case whose modes agree takes one row."""
    yield "| what is different in the second process | TorchAir alone | warmrank, engine `torchair` |"
    yield "|---|---|---|"
    for group, of_group in groupby(lines, key=lambda line: line.case.group):
        yield f"| **{group}** | | |"
        for name, of_case in groupby(of_group, key=lambda line: line.case.name):
            rows = [(line.mode, _emphasised(alone(line)), _ours(line)) for line in of_case]
            if len({row[1:] for row in rows}) == 1:
                rows = [("", *rows[0][1:])]
            for mode, theirs, ours in rows:
                yield f"| {name}{f' (`{mode}`)' if mode else ''} | {theirs} | {ours} |"
    yield "| **not run** | | |"
    for name, why in SKIPPED.items():
        yield f"| {name} | - | {why} |"


def summary(lines: Sequence[Line]) -> str:
    """The counts in a sentence."""
    found = counts(lines)
    cases = len({(line.case.group, line.case.name) for line in lines})
    theirs = ", ".join(f"{name} {found[name]}" for name in (WRONG, ERROR, OLD, NOTICES, RIGHT))
    faults = found["faults of warmrank"]
    return (
        f"{cases} cases, {len(lines)} with their modes. TorchAir alone: {theirs}. "
        f"warmrank: {f'{faults} FAULTS' if faults else 'right in all, with the reason that was expected'}."
    )


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """All outcomes, whole."""
    return [
        {
            "group": line.case.group,
            "case": line.case.name,
            "mode": line.mode,
            "verdict": alone(line),
            "alone": asdict(line.alone),
            "warmrank": asdict(line.ours),
            "fault": fault(line),
        }
        for line in lines
    ]


def _emphasised(verdict: str) -> str:
    return f"**{verdict}**" if verdict == WRONG else verdict


def _ours(line: Line) -> str:
    if said := fault(line):
        return f"**FAULT: {_short(said)}**"
    return RIGHT if line.ours.outcome == "loaded" else f"miss: `{_short(line.ours.detail)}`; right"


def _short(text: str) -> str:
    text = text.removeprefix("nearest artifact differs: ").splitlines()[0].replace("|", "/").replace("`", "'")
    text = _DIGEST.sub("", text)
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 3]}..."
