"""Equal failures grouped into causes."""

from __future__ import annotations

from warmrank.orchestrator.causes import (
    CLUSTER_LOST,
    DIED,
    NODE_LOST,
    STOPPED,
    TIMEOUT,
    WorkerFailure,
    causes_of,
)


def failure(rank: int, kind: str, message: str = "m", function: str = "") -> WorkerFailure:
    return WorkerFailure(rank=rank, stage="load", kind=kind, message=message, function=function)


def test_equal_failures_are_one_cause_with_its_ranks_and_nodes_in_order() -> None:
    (cause,) = causes_of([failure(3, "OSError"), failure(1, "OSError")], {1: "n1", 3: "n2"})
    assert (cause.ranks, cause.kind, cause.hosts) == ((1, 3), "OSError", ("n1", "n2"))


def test_other_message_or_function_is_another_cause() -> None:
    found = causes_of(
        [failure(0, "OSError"), failure(1, "OSError", "n"), failure(2, "OSError", function="f")], {}
    )
    assert [cause.ranks for cause in found] == [(0,), (1,), (2,)]


def test_what_others_fail_in_the_wake_of_comes_first() -> None:
    kinds = ("OSError", TIMEOUT, STOPPED, DIED, NODE_LOST, CLUSTER_LOST)
    found = causes_of([failure(rank, kind) for rank, kind in enumerate(kinds)], {})
    assert [cause.kind for cause in found] == list(reversed(kinds))
