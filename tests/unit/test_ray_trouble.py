"""Ray's exceptions and shortages, told in this project's words."""

from __future__ import annotations

import pytest
from ray import exceptions

from warmrank.orchestrator.gang.eligible import Eligible, RayNode
from warmrank.orchestrator.gang.node_group import failure_of_ray
from warmrank.orchestrator.gang.reservation import describe_shortage
from warmrank.orchestrator.nodes import this_node

DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RankActor\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
    "Worker exit detail: Worker unexpectedly exits with code 2. End of file. Some common causes include: "
    "(1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called."
)


def actor_error(text: str) -> exceptions.RayActorError:
    return exceptions.RayActorError("ab" * 16, text)


def supply(resources: dict[str, float]) -> Eligible:
    return Eligible(nodes=(RayNode(node=this_node(), resources=resources),), labels={})


def shortage(total: float, free: float, state: str = "NO_RESOURCES", *, own: bool = False) -> str:
    return describe_shortage({"CPU": 2.0}, 3, supply({"CPU": total}), {"CPU": free}, state=state, own=own)


def test_too_small_a_cluster_names_the_numbers_and_what_to_change() -> None:
    text = shortage(4, 4)
    assert "CPU: 3 x 2 = 6 wanted, 4 there, 2 too few, 4 free" in text
    assert "lower ranks" in text
    assert "add nodes" in text


def test_missing_accelerators_are_no_matter_of_cpus() -> None:
    here = supply({"CPU": 64.0, "GPU": 2.0})
    text = describe_shortage({"CPU": 1.0, "GPU": 1.0}, 4, here, {}, state="PENDING", own=True)
    assert "GPU: 4 x 1 = 4 wanted, 2 there, 2 too few" in text
    assert "remedy: lower ranks, or add nodes with GPUs that Ray sees" in text


def test_dead_actor_is_told_by_how_its_process_ended() -> None:
    failure = failure_of_ray(actor_error(DIED), rank=3, stage="compile")
    assert (failure.rank, failure.stage, failure.kind) == (3, "compile", "died")
    assert failure.message == "its process ended (SYSTEM_ERROR: Worker unexpectedly exits with code 2.)"


def test_missing_module_is_told_by_its_name() -> None:
    text = f"{DIED}\nModuleNotFoundError: No module named 'models'"
    failure = failure_of_ray(actor_error(text), rank=0, stage="start")
    assert (failure.kind, failure.message) == ("import", "No module named 'models'")
    assert "start the launch in the directory" in failure.advice()


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
