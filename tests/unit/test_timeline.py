"""The timeline of many ranks in few rows, and whom the others waited for."""

from __future__ import annotations

import pytest

from tests.support.made_reports import made_report
from warmrank.orchestrator.launch.timeline import slow_ranks, timeline_rows


@pytest.mark.parametrize(
    ("num_ranks", "per_node", "num_rows"),
    [
        (8, 8, 8),
        (64, 8, 64),
        (256, 8, 32),
        *(pytest.param(*sizes, 0, marks=pytest.mark.slow) for sizes in ((4096, 8), (1024, 1), (1024, 1024))),
    ],
)
def test_rows_are_ranks_nodes_or_groups_that_are_few_and_lose_nobody(
    num_ranks: int, per_node: int, num_rows: int
) -> None:
    report = made_report(num_ranks, per_node=per_node)
    rows = timeline_rows(report.course, report.ranks, max_rows=64)
    assert num_rows in {0, len(rows)}
    assert 1 < len(rows) <= 64
    assert sorted(rank for row in rows for rank in row.ranks) == list(range(num_ranks))


def test_slow_rank_is_one_that_others_waited_for() -> None:
    report = made_report(1024)
    assert [(slow.stage, slow.rank) for slow in slow_ranks(report.course, report.ranks)] == [("build", 341)]
