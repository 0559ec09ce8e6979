"""What the figures of all sizes say: the fastest run of each stage, how it grows, and the goals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MIB = 1 << 20
GOAL_S = 10.0
GOAL_EXPONENT = 1.15
"""Linear, and what a shared machine adds."""

GOAL_STAGES = ("plan", "commit", "look-up")
GROWING_RANKS = 1024  # below, what does not grow takes most of the time


def summary(runs: Sequence[dict[str, Any]], stages: Sequence[str]) -> list[dict[str, Any]]:
    """One line for each size and stage, sizes in order; the fastest run of each counts."""
    lines: list[dict[str, Any]] = []
    before: dict[str, dict[str, Any]] = {}
    for ranks in sorted({run["ranks"] for run in runs}):
        for stage in stages:
            of_stage = [run["stages"][stage] for run in runs if run["ranks"] == ranks]
            best = min(of_stage, key=lambda figures: figures["seconds"])
            line = {
                "ranks": ranks,
                "stage": stage,
                "seconds": best["seconds"],
                "microseconds_a_rank": best["seconds"] / ranks * 1e6,
                "peak_bytes": max(figures["peak_bytes"] for figures in of_stage),
                "cpu_s": best["cpu_s"],
                "exponent": exponent(before.get(stage), ranks, best["cpu_s"]),
                "steps": best["steps"],
            }
            before[stage] = line
            lines.append(line)
    return lines


def exponent(before: dict[str, Any] | None, ranks: int, cpu_s: float) -> float | None:
    """Of the growth of CPU seconds since the size before: 1 is linear; None for the first size."""
    if before is None:
        return None
    return math.log(cpu_s / before["cpu_s"]) / math.log(ranks / before["ranks"])


def verdict(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Whether the goals are met at the largest size."""
    ranks = max(line["ranks"] for line in lines)
    total_s = sum(
        line["seconds"] for line in lines if line["ranks"] == ranks and line["stage"] in GOAL_STAGES
    )
    found: dict[str, dict[str, Any]] = {
        "total": {
            "seconds": total_s,
            "met": total_s < GOAL_S,
            "text": f"{', '.join(GOAL_STAGES)} at {ranks:,} ranks: {total_s:.2f} s in all, goal {GOAL_S:g} s",
        }
    }
    first = min((line["ranks"] for line in lines if line["ranks"] >= GROWING_RANKS), default=ranks)
    if first < ranks:
        found["growth"] = _growth(lines, first, ranks)
    return found


def _growth(lines: Sequence[dict[str, Any]], first: int, last: int) -> dict[str, Any]:
    """The stage that grows most between two sizes; over the whole range, for each step has its own noise."""
    before = {line["stage"]: line for line in lines if line["ranks"] == first}
    grown = {
        line["stage"]: exponent(before[line["stage"]], last, line["cpu_s"]) or 0.0
        for line in lines
        if line["ranks"] == last
    }
    stage, steepest = max(grown.items(), key=lambda item: item[1])
    return {
        "exponents": grown,
        "met": steepest <= GOAL_EXPONENT,
        "text": f"steepest growth from {first:,} to {last:,} ranks: {stage}, exponent {steepest:.2f}",
    }


def report(lines: Sequence[dict[str, Any]], ranks: int) -> None:
    """Print the lines of one size, after a heading if it is the first."""
    if ranks == lines[0]["ranks"]:
        heading = (
            f"{'ranks':>7}  {'stage':<9}{'s':>8}{'CPU s':>8}{'us a rank':>10}{'peak MiB':>10}{'exponent':>10}"
        )
        print(f"{heading}  steps, s")
    for line in lines:
        if line["ranks"] != ranks:
            continue
        grown = "-" if line["exponent"] is None else f"{line['exponent']:.2f}"
        steps = ", ".join(f"{name} {step['seconds']:.3f}" for name, step in line["steps"].items())
        taken = f"{line['seconds']:>8.3f}{line['cpu_s']:>8.3f}{line['microseconds_a_rank']:>10.0f}"
        memory = f"{line['peak_bytes'] / MIB:>10.1f}"
        print(f"{ranks:>7}  {line['stage']:<9}{taken}{memory}{grown:>10}  {steps}", flush=True)
