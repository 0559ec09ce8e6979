"""Many ranks in few words and few rows: pure functions of frozen values, shared by all that shows a launch.

Invariant: what is shown has a bound that does not grow with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from warmrank.orchestrator.show.course import Course, StageSpan
from warmrank.orchestrator.show.report import RankReport

MAX_RUNS = 6
"""Runs of neighbouring ranks that a text names before it counts the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What some ranks did in one stage of one attempt.

    Attributes:
        attempt: number of the attempt, from 1.
        stage: name of the stage.
        start_s: when it began, in seconds since the launch did.
        first_s: when the first of these ranks had answered.
        last_s: when the last one had.
        last_rank: which one that was.
        num_ranks: how many of them took part.
        ok: false for the stage that the attempt ended in.
    """

    attempt: int
    stage: str
    start_s: float
    first_s: float
    last_s: float
    last_rank: int
    num_ranks: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Ranks that a timeline shows in one row.

    Attributes:
        ranks: its members, in order.
        hosts: their hosts, in order; empty where the ranks had no places.
        bars: what they did, in order of time.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    bars: tuple[Bar, ...]


def runs_text(ranks: Iterable[int], *, max_runs: int = MAX_RUNS) -> str:
    """Ranks without the noun, such as ``0-7, 9``; many runs end in a number, ``0, 2 ... (512 in all)``."""
    ordered = sorted(set(ranks))
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:max_runs])
    return shown if len(runs) <= max_runs else f"{shown} ... ({len(ordered):,} in all)"


def brief_ranks(ranks: Iterable[int], *, max_runs: int = MAX_RUNS) -> str:
    """Ranks for people, bounded in length: ``rank 3``, ``ranks 0-7, 9``."""
    ordered = sorted(set(ranks))
    return f"rank{'' if len(ordered) == 1 else 's'} {runs_text(ordered, max_runs=max_runs)}"


def brief_names(names: Iterable[str], *, max_names: int = 4) -> str:
    """Names for people, each once, bounded in number: ``a, b and 3 more``."""
    every = list(dict.fromkeys(names))
    more = len(every) - max_names
    return ", ".join(every[:max_names]) + (f" and {more:,} more" if more > 0 else "")


def timeline_rows(course: Course, ranks: Sequence[RankReport], *, max_rows: int) -> tuple[Row, ...]:
    """The timeline of a launch in at most ``max_rows`` rows, or a few more.

    A row is a rank; where these are too many, a node; where these are too many as well, nodes that did the
    same at nearly the same time, so that a straggler keeps a row of its own. What counts as near grows until
    the rows are few enough.
    """
    hosts = {rank.rank: rank.host for rank in ranks}
    ends = [dict(zip(span.ranks, span.rank_end_s, strict=True)) for span in course.timeline]
    units = _units(course, ranks, max_rows)
    wall_s = max((span.end_s for span in course.timeline), default=0.0)
    groups = [[unit] for unit in units]
    part = 1 / 200
    while len(groups) > max_rows and part <= 1:
        alike: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
        for unit in units:
            alike.setdefault(_signature(unit, ends, max(wall_s * part, 1e-6)), []).append(unit)
        groups, part = list(alike.values()), part * 2
    return tuple(_row(group, course.timeline, ends, hosts) for group in groups)


def _units(course: Course, ranks: Sequence[RankReport], max_rows: int) -> list[tuple[int, ...]]:
    """What a row may consist of, in order: ranks, or nodes where there are too many ranks."""
    everyone = sorted({rank for span in course.timeline for rank in span.ranks})
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node_rank, []).append(rank.rank)
    seated = {rank.rank for rank in ranks}
    if len(everyone) <= max_rows or len(nodes) < 2:
        return [(rank,) for rank in everyone]
    return [
        *(tuple(members) for members in nodes.values()),
        *((rank,) for rank in everyone if rank not in seated),
    ]


def _signature(
    unit: tuple[int, ...], ends: Sequence[Mapping[int, float]], quantum_s: float
) -> tuple[object, ...]:
    """What makes two units alike: when the last of their ranks answered, stage by stage, nearly."""
    found: list[object] = []
    for end in ends:
        own = [end[rank] for rank in unit if rank in end]
        found.append(round(max(own) / quantum_s) if own else None)
    return tuple(found)


def _row(
    units: Sequence[tuple[int, ...]],
    spans: Sequence[StageSpan],
    ends: Sequence[Mapping[int, float]],
    hosts: Mapping[int, str],
) -> Row:
    ranks = tuple(sorted(rank for unit in units for rank in unit))
    bars = []
    for span, end in zip(spans, ends, strict=True):
        own = [(end[rank], rank) for rank in ranks if rank in end]
        if own:
            last_s, last_rank = max(own)
            bars.append(
                Bar(
                    attempt=span.attempt,
                    stage=span.stage,
                    start_s=span.start_s,
                    first_s=min(own)[0],
                    last_s=last_s,
                    last_rank=last_rank,
                    num_ranks=len(own),
                    ok=span.ok,
                )
            )
    named = tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))
    return Row(ranks=ranks, hosts=named, bars=tuple(bars))
