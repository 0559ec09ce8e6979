"""Many ranks in few words and rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.made_reports import made_report
from warmrank.orchestrator.show.course import Course, StageSpan
from warmrank.orchestrator.show.folding import brief_names, brief_ranks, runs_text, timeline_rows
from warmrank.orchestrator.show.headline import headline
from warmrank.orchestrator.show.slow_ranks import last_ranks, node_lags, slow_ranks


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((), ""),
        ((3,), "3"),
        ((2, 0, 1, 5), "0-2, 5"),
        (range(0, 1024, 2), "0, 2, 4, 6, 8, 10 ... (512 in all)"),
    ],
)
def test_ranks_are_told_as_runs(ranks: tuple[int, ...], expected: str) -> None:
    assert runs_text(ranks) == expected


@given(st.sets(st.integers(0, 100_000)))
def test_text_of_ranks_is_short_whatever_they_are(ranks: set[int]) -> None:
    assert len(brief_ranks(ranks)) < 120


def test_names_are_told_once_each_and_then_counted() -> None:
    assert brief_names("aabbcdef") == "a, b, c, d and 2 more"
    assert brief_names("aa") == "a"


@pytest.mark.parametrize(("num_ranks", "per_node", "num_rows"), [(8, 8, 8), (64, 8, 64), (256, 8, 32)])
def test_rows_are_ranks_and_then_nodes(num_ranks: int, per_node: int, num_rows: int) -> None:
    report = made_report(num_ranks, per_node=per_node)
    rows = timeline_rows(report.course, report.ranks, max_rows=64)
    assert len(rows) == num_rows
    assert sorted(rank for row in rows for rank in row.ranks) == list(range(num_ranks))


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "per_node"), [(1024, 8), (4096, 8), (1024, 1), (1024, 1024)])
def test_rows_of_many_nodes_or_ranks_are_few_and_lose_nobody(num_ranks: int, per_node: int) -> None:
    report = made_report(num_ranks, per_node=per_node)
    rows = timeline_rows(report.course, report.ranks, max_rows=64)
    assert 1 < len(rows) <= 64
    assert sorted(rank for row in rows for rank in row.ranks) == list(range(num_ranks))


def test_straggler_keeps_a_row_of_its_own() -> None:
    report = made_report(1024)
    rows = timeline_rows(report.course, report.ranks, max_rows=64)
    (own,) = [row for row in rows if 341 in row.ranks]
    assert own.hosts == ("node-42",)
    (build,) = [bar for bar in own.bars if bar.stage == "build"]
    assert (build.last_rank, build.num_ranks) == (341, 8)


def test_rows_of_ranks_without_places_are_ranks() -> None:
    span = StageSpan(
        attempt=1, stage="start", start_s=0.0, end_s=1.0, ok=False, ranks=(0, 1), rank_end_s=(1.0, 1.0)
    )
    rows = timeline_rows(Course(timeline=(span,)), (), max_rows=64)
    assert [(row.ranks, row.hosts) for row in rows] == [((0,), ()), ((1,), ())]


def test_slow_rank_is_one_that_others_waited_for() -> None:
    report = made_report(1024)
    assert [(slow.stage, slow.rank) for slow in slow_ranks(report.course, report.ranks)] == [("build", 341)]


def test_rank_slow_in_two_attempts_is_told_once() -> None:
    report = made_report(1024, failed=True)
    assert len(last_ranks(report.course, report.ranks)) == 10
    assert len(slow_ranks(report.course, report.ranks)) == 1


def test_nobody_is_slow_in_a_stage_that_failed() -> None:
    span = StageSpan(
        attempt=1, stage="build", start_s=0.0, end_s=60.0, ok=False, ranks=(0, 1, 2), rank_end_s=(1, 1, 60)
    )
    assert slow_ranks(Course(timeline=(span,)), ()) == ()


def test_nodes_are_measured_by_their_slowest_rank() -> None:
    report = made_report(1024)
    lags = node_lags(report.course, report.ranks)
    assert lags[42][0] == pytest.approx(2.09, abs=0.02)
    assert lags[42][1] == "build"
    assert max(lags, key=lambda node: lags[node][0]) == 42


def test_headline_of_a_launch_that_compiled_nothing_says_so() -> None:
    report = made_report(8)
    assert headline(report) == "All 8 ranks are warm after 34.7 s: 8 compiled, 8 adopted."
