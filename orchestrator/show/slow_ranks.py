"""Ranks that kept the others waiting, stage by stage: pure functions of a launch's course."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from warmrank.orchestrator.show.course import Course, StageSpan
from warmrank.orchestrator.show.report import RankReport

SLOW_FACTOR = 1.5
"""How many times as long as half of the ranks makes a rank a slow one."""

SLOW_MIN_S = 1.0
"""Less than this, waited for in vain, is not worth a word."""

_UNEVEN = frozenset({"compile", "script"})
"""Stages in which ranks have different work to do, so that the last one is not a slow one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """The last rank of a stage.

    Attributes:
        stage: the stage.
        attempt: of which attempt.
        rank: the rank that answered last.
        host: its host; empty where it had no place.
        seconds: what it took.
        median_s: what half of the ranks took at most.
        num_ranks: ranks that took part.
        ok: false for the stage that the attempt ended in, in which ranks may not have answered at all.
    """

    stage: str
    attempt: int
    rank: int
    host: str
    seconds: float
    median_s: float
    num_ranks: int
    ok: bool


def last_ranks(course: Course, ranks: Sequence[RankReport]) -> tuple[SlowRank, ...]:
    """The last rank of every span of the timeline, in order of time."""
    hosts = {rank.rank: rank.host for rank in ranks}
    return tuple(_last(span, hosts) for span in course.timeline if span.ranks)


def slow_ranks(course: Course, ranks: Sequence[RankReport]) -> tuple[SlowRank, ...]:
    """Those of them that the others waited for in vain, each once a stage, those that cost most first."""
    found = [
        slow
        for slow in last_ranks(course, ranks)
        if slow.ok
        and slow.stage not in _UNEVEN
        and slow.num_ranks > 2
        and slow.seconds > SLOW_FACTOR * slow.median_s
        and slow.seconds - slow.median_s >= SLOW_MIN_S
    ]
    worst = sorted(found, key=lambda slow: slow.median_s - slow.seconds)
    return tuple({(slow.stage, slow.rank): slow for slow in reversed(worst)}.values())[::-1]


def node_lags(course: Course, ranks: Sequence[RankReport]) -> dict[int, tuple[float, str]]:
    """By how many seconds each node was behind half of all ranks where it was most so, and in which stage.

    Nodes that were never behind are left out.
    """
    nodes = {rank.rank: rank.node_rank for rank in ranks}
    lags: dict[int, tuple[float, str]] = {}
    for span in course.timeline:
        if not span.ok or span.stage in _UNEVEN or not span.ranks:
            continue
        median_s = median_low(span.rank_end_s)
        for rank, end_s in zip(span.ranks, span.rank_end_s, strict=True):
            node = nodes.get(rank)
            if node is not None and end_s - median_s > lags.get(node, (0.0, ""))[0]:
                lags[node] = (end_s - median_s, span.stage)
    return lags


def _last(span: StageSpan, hosts: dict[int, str]) -> SlowRank:
    end_s, rank = max(zip(span.rank_end_s, span.ranks, strict=True))
    return SlowRank(
        stage=span.stage,
        attempt=span.attempt,
        rank=rank,
        host=hosts.get(rank, ""),
        seconds=end_s - span.start_s,
        median_s=median_low(span.rank_end_s) - span.start_s,
        num_ranks=len(span.ranks),
        ok=span.ok,
    )
