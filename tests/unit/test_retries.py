"""Which failures are tried again, and how often."""

from __future__ import annotations

import pytest

from warmrank.orchestrator.causes import CLUSTER_LOST, DIED, NODE_LOST, STOPPED, TIMEOUT, WorkerFailure
from warmrank.orchestrator.config.models import Retries
from warmrank.orchestrator.errors import CannotStart, CompileForbidden, ForbiddenCompile, LaunchFailed
from warmrank.orchestrator.launch.failures import RetryBudget, budget_of, is_lost


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
        (CannotStart("silent", may_pass=True, has_lost_node=True), "node"),
        (failed("RuntimeError", DIED), "rank"),  # the others fail in the wake of the dead one
        (failed(TIMEOUT, "DistBackendError", NODE_LOST), "node"),
        (CannotStart("late", may_pass=True), "start"),
        (failed("WorkloadError"), None),
        (failed("RuntimeError"), None),
        (failed(CLUSTER_LOST, DIED), None),
        (CannotStart("too few CPUs"), None),
        (CompileForbidden([ForbiddenCompile(function="f", reason="r", ranks=(0,))]), None),
    ],
)
def test_failure_counts_against_its_budget(error: Exception, budget: str | None) -> None:
    assert budget_of(error) == budget


def test_each_budget_is_spent_by_its_own_failures_only() -> None:
    spent = RetryBudget(Retries(rank=1, node=2, hang=0))
    assert spent.another(failed(DIED))
    assert spent.another(failed(NODE_LOST))
    assert spent.another(failed(DIED)) == ""
    assert spent.another(failed(NODE_LOST))
    assert spent.another(failed(NODE_LOST)) == ""
    assert spent.another(failed(STOPPED)) == ""


@pytest.mark.parametrize("error", [failed(DIED), failed(CLUSTER_LOST), CannotStart("late", may_pass=True)])
def test_launch_that_another_one_may_mend_is_lost(error: Exception) -> None:
    assert is_lost(error)
