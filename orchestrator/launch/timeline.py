"""The timeline of a launch in few rows, and the last rank of each stage: pure functions of its course.

Invariant: the number of rows has a bound that does not grow with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from warmrank.orchestrator.launch.report import RankReport
from warmrank.orchestrator.launch.state import Course


class Bar(NamedTuple):
    """Part of some ranks in one stage of one attempt, from its start to the first and the last answer.

    Times are in seconds since the launch began; not ``ok``: the attempt ended in this stage.
    """

    attempt: int
    stage: str
    start_s: float
    first_s: float
    last_s: float
    last_rank: int
    num_ranks: int
    ok: bool


class Row(NamedTuple):
    """Ranks that a timeline shows in one row, and their hosts, as far as they had places, in order."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    bars: tuple[Bar, ...]


class LastRank(NamedTuple):
    """The last rank of a stage: what it took, and what half of the ranks took at most.

    Not ``ok``: the attempt ended in this stage, in which ranks may not have answered at all.
    """

    stage: str
    attempt: int
    rank: int
    host: str
    seconds: float
    median_s: float
    num_ranks: int
    ok: bool


def last_ranks(course: Course, ranks: Sequence[RankReport]) -> tuple[LastRank, ...]:
    """The last rank of every span of the timeline, in order of time."""
    hosts = {rank.rank: rank.host for rank in ranks}
    found = []
    for span in course.timeline:
        if span.ranks:
            end_s, rank = max(zip(span.rank_end_s, span.ranks, strict=True))
            seconds, median_s = end_s - span.start_s, median_low(span.rank_end_s) - span.start_s
            host, num_ranks = hosts.get(rank, ""), len(span.ranks)
            found.append(
                LastRank(span.stage, span.attempt, rank, host, seconds, median_s, num_ranks, span.ok)
            )
    return tuple(found)


def timeline_rows(course: Course, ranks: Sequence[RankReport], *, max_rows: int) -> tuple[Row, ...]:
    """The timeline of a launch in at most ``max_rows`` rows, or a few more.

    A row is a rank; where these are too many, a node; where these are too many as well, nodes that did the
    same at nearly the same time, so that a straggler keeps a row of its own: what is near grows until rows
    are few enough.
    """
    hosts = {rank.rank: rank.host for rank in ranks}
    ends = [dict(zip(span.ranks, span.rank_end_s, strict=True)) for span in course.timeline]
    units = _units(course, ranks, max_rows)
    wall_s = max((span.end_s for span in course.timeline), default=0.0)
    groups = [[unit] for unit in units]
    part = 1 / 200
    while len(groups) > max_rows and part <= 1:
        quantum_s = max(wall_s * part, 1e-6)
        alike: dict[tuple[int | None, ...], list[tuple[int, ...]]] = {}
        # Alike are those whose last ranks answered at nearly the same time, stage by stage.
        for unit in units:
            owns = [[end[rank] for rank in unit if rank in end] for end in ends]
            signature = tuple(round(max(own) / quantum_s) if own else None for own in owns)
            alike.setdefault(signature, []).append(unit)
        groups, part = list(alike.values()), part * 2
    return tuple(
        _row(sorted(rank for unit in group for rank in unit), course, ends, hosts) for group in groups
    )


def _units(course: Course, ranks: Sequence[RankReport], max_rows: int) -> list[tuple[int, ...]]:
    """Units of rows, in order: ranks, or nodes where there are too many ranks."""
    everyone = sorted({rank for span in course.timeline for rank in span.ranks})
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node_rank, []).append(rank.rank)
    if len(everyone) <= max_rows or len(nodes) < 2:
        return [(rank,) for rank in everyone]
    seated = {rank.rank for rank in ranks}
    return [*map(tuple, nodes.values()), *((rank,) for rank in everyone if rank not in seated)]


def _row(
    ranks: Sequence[int], course: Course, ends: Sequence[Mapping[int, float]], hosts: Mapping[int, str]
) -> Row:
    bars = []
    for span, end in zip(course.timeline, ends, strict=True):
        if own := [(end[rank], rank) for rank in ranks if rank in end]:
            first_s, (last_s, last_rank) = min(own)[0], max(own)
            times = span.start_s, first_s, last_s
            bars.append(Bar(span.attempt, span.stage, *times, last_rank, len(own), span.ok))
    named = tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))
    return Row(tuple(ranks), named, tuple(bars))
