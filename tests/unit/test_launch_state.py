"""What is known of a running launch, how it is shown, who waits for whom."""

from __future__ import annotations

import io
import logging
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.launching import loaded_config
from tests.support.made_reports import failing, made_report, placements, result, state_of
from warmrank.orchestrator.config.models import Retries
from warmrank.orchestrator.errors import (
    CLUSTER_LOST,
    DIED,
    NODE_LOST,
    STOPPED,
    TIMEOUT,
    Budget,
    CannotStart,
    CompileForbidden,
    LaunchFailed,
    OrchestratorError,
    WorkerFailure,
    causes_of,
)
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch import events as e
from warmrank.orchestrator.launch.driver import reason_for_another, turn
from warmrank.orchestrator.launch.events import LaunchState
from warmrank.orchestrator.ui.page import timeline_rows
from warmrank.orchestrator.ui.progress import PlainLines
from warmrank.worker.results import FunctionResult


def class_of(leader: int | None, *ranks: int, action: events.ClassAction = "compile") -> events.RankClass:
    return events.RankClass(
        round=0, function="f", request_key="ab", ranks=ranks, action=action, leader=leader
    )


def heard() -> LaunchState:
    """Two attempts: the first ends while rank 1 of two is still at work, the second goes on."""
    return state_of(
        (
            events.AttemptStarted(at_s=0.0, attempt=1),
            events.StageStarted(at_s=1.0, stage="build", ranks=(0, 1)),
            events.RankFinished(at_s=2.0, stage="build", rank=0, ok=True),
            events.Planned(at_s=2.5, classes=(class_of(0, 0, 1),)),
            events.AttemptFailed(at_s=3.0, attempt=1, stage="build", text="gone", is_last=False),
            events.AttemptStarted(at_s=4.0, attempt=2, reason="a rank died"),
            events.Planned(at_s=5.0, classes=(class_of(1, 0, 1),)),
            events.StageStarted(at_s=5.0, stage="compile", ranks=(1,)),
            events.RankFinished(at_s=6.0, stage="compile", rank=1, ok=True),
            events.RankFinished(at_s=7.0, stage="compile", rank=1, ok=True),
            events.StageFinished(at_s=7.5, stage="compile", seconds=2.5),
        )
    )


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


def lines_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def plain(heard: Iterable[e.Event], num_ranks: int = 2) -> list[str]:
    console, state = Console(file=io.StringIO(), width=40), LaunchState(num_ranks=num_ranks)
    listener = PlainLines(console)
    for event in heard:
        state.apply(event)
        listener(state, event)
    return lines_of(console)


def told(result_of: FunctionResult, *ranks: int) -> list[e.Event]:
    return [e.FunctionFinished(at_s=1.0, stage="load", rank=rank, result=result_of) for rank in ranks]


def stage(name: str, *ranks: int, at_s: float = 0.0) -> e.StageStarted:
    return e.StageStarted(at_s=at_s, stage=name, ranks=ranks)


ONE_HOST = e.Placed(
    at_s=0.0,
    placements=tuple(
        replace(placement, host="vm", node_id=f"{placement.rank}f{54 * '0'}")
        for placement in placements(2, 1)
    ),
)
LOADED = e.StageFinished(at_s=1.5, stage="load", seconds=1.5)
ADOPTED = result("Model.decode", compiled=False)
REFUSED = FunctionResult(function="f", ok=False, outcome="adopted", reason="a guard does not hold")


@pytest.mark.parametrize(
    ("heard", "line"),
    [
        ([stage("build", 0, 1, 2)], "build: on ranks 0-2"),
        ([LOADED], "load: 1.50 s"),
        ([*told(ADOPTED, 1, 2, 3), LOADED], "  Model.decode adopted on ranks 1-3 (from rank 0)"),
        ([*told(REFUSED, 0), LOADED], "  f refused on rank 0 (a guard does not hold)"),
        ([ONE_HOST], "2 ranks on 2 nodes: vm 0f0000000000, vm 1f0000000000"),
        (failing(8), "attempt 1 failed in stage compile"),
        (failing(8), "    rank 0: node lost"),
        (failing(8), "attempt 2, because attempt 1 failed: node node-0 was lost"),
    ],
)
def test_plain_lines_tell_what_happens_once_without_wrapping(heard: Iterable[e.Event], line: str) -> None:
    assert plain(heard).count(line) == 1


def failure(rank: int, kind: str, message: str = "m", function: str = "") -> WorkerFailure:
    return WorkerFailure(rank=rank, stage="load", kind=kind, message=message, function=function)


def test_equal_failures_are_one_cause_with_its_ranks_and_nodes_in_order() -> None:
    (cause,) = causes_of([failure(3, "OSError"), failure(1, "OSError")], {1: "n1", 3: "n2"})
    assert (cause.ranks, cause.kind, cause.hosts) == ((1, 3), "OSError", ("n1", "n2"))


def test_what_others_fail_in_the_wake_of_comes_first() -> None:
    kinds = ("OSError", TIMEOUT, STOPPED, DIED, NODE_LOST, CLUSTER_LOST)
    found = causes_of([failure(rank, kind) for rank, kind in enumerate(kinds)], {})
    assert [cause.kind for cause in found] == list(reversed(kinds))


def failed(*kinds: str) -> LaunchFailed:
    failures = [
        WorkerFailure(rank=rank, stage="capture", kind=kind, message=f"message of {kind}")
        for rank, kind in enumerate(kinds)
    ]
    return LaunchFailed("capture", failures, num_ranks=4)


@pytest.mark.parametrize(
    ("error", "budget"),
    [
        (failed(DIED), "rank"),
        (failed(NODE_LOST, NODE_LOST), "node"),
        (failed(STOPPED), "hang"),
        (failed(TIMEOUT), "hang"),
        (failed("DistBackendError"), "hang"),
        (failed("PortInUse", TIMEOUT, "DistNetworkError"), "start"),
        (CannotStart("silent", budget="node"), "node"),
        (failed("RuntimeError", DIED), "rank"),  # the others fail in the wake of the dead one
        (failed(TIMEOUT, "DistBackendError", NODE_LOST), "node"),
        (CannotStart("late", budget="start"), "start"),
        (failed("WorkloadError"), None),
        (failed("RuntimeError"), None),
        (failed(CLUSTER_LOST, DIED), None),
        (CannotStart("too few CPUs"), None),
        (CompileForbidden([("f", "r", 0)]), None),
    ],
)
def test_failure_counts_against_its_budget(error: OrchestratorError, budget: str | None) -> None:
    assert error.budget == budget


def test_each_budget_is_spent_by_its_own_failures_only() -> None:
    retries, spent = Retries(rank=1, node=2, hang=0), Counter[Budget]()
    kinds = (DIED, NODE_LOST, DIED, NODE_LOST, NODE_LOST, STOPPED)
    reasons = [reason_for_another(failed(kind), retries, spent) for kind in kinds]
    assert [bool(reason) for reason in reasons] == [True, True, False, True, False, False]


@pytest.mark.parametrize("error", [failed(DIED), failed(CLUSTER_LOST), CannotStart("late", budget="start")])
def test_launch_that_another_one_may_mend_is_lost(error: LaunchFailed | CannotStart) -> None:
    assert error.is_lost


def test_second_launch_waits_for_the_first_on_an_empty_cache_and_later_ones_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config, order, waits = loaded_config(tmp_path), [], threading.Event()

    def note(_record: logging.LogRecord) -> bool:
        waits.set()
        return True

    caplog.handler.addFilter(note)

    def second() -> None:
        with turn(config):
            order.append("second")

    with pytest.raises(RuntimeError), turn(config):
        raise RuntimeError  # who failed leaves the first turn to the next
    thread = threading.Thread(target=second)
    with turn(config):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert "waiting for its end" in caplog.text
    caplog.clear()
    with turn(config), turn(config):
        pass
    assert not caplog.records
