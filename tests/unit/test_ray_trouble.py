"""Ray's exceptions and shortages, told in this project's words."""

from __future__ import annotations

import pytest
from ray import exceptions

from warmrank.orchestrator.gang.node_group import failure_of_ray
from warmrank.orchestrator.gang.reservation import Supply, describe_shortage


def shortage(total: float, free: float, state: str = "NO_RESOURCES", *, own: bool = False) -> str:
    supply = Supply(total={"CPU": total}, available={"CPU": free})
    return describe_shortage({"CPU": 2.0}, 3, supply, state=state, own=own)


def test_too_small_a_cluster_names_the_numbers_and_what_to_change() -> None:
    text = shortage(4, 4)
    assert "CPU: 3 x 2 = 6 wanted, 4 there, 2 too few, 4 free" in text
    assert "lower ranks" in text
    assert "add nodes" in text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.OutOfMemoryError("killed"), "died"),
        (exceptions.NodeDiedError("lost"), "node lost"),
        (exceptions.ActorUnschedulableError("the node does not exist any more"), "node lost"),
        (exceptions.RuntimeEnvSetupError("no space"), "environment"),
        (exceptions.GetTimeoutError("late"), "GetTimeoutError"),
    ],
)
def test_every_error_of_ray_becomes_a_failure(error: Exception, kind: str) -> None:
    failure = failure_of_ray(error, rank=0, stage="load")
    assert failure.kind == kind
    assert failure.message
