"""The order of captures over all ranks."""

from __future__ import annotations

from warmrank.orchestrator.launch.steps import order
from warmrank.worker.results import CaptureProposal


def proposal(function: str, size: int, signature: str = "", *, planned: bool = False) -> CaptureProposal:
    return CaptureProposal(
        function=function,
        signature=signature,
        shapes=signature.partition(" ")[2],
        num_elements=size,
        planned=planned,
    )


def planned(function: str, size: int, artifact: str) -> CaptureProposal:
    return proposal(function, size, f"{artifact} {size}", planned=True)


def test_every_rank_takes_its_largest_call_in_the_first_step() -> None:
    proposals = {0: (proposal("f", 1), proposal("g", 7)), 1: (proposal("f", 8), proposal("g", 2))}
    steps = order(proposals, {})
    assert [{rank: item.function for rank, item in step.items()} for step in steps] == [
        {0: "g", 1: "f"},
        {0: "f", 1: "g"},
    ]


def test_ranks_with_one_artifact_capture_a_planned_shape_together() -> None:
    one = planned("f", 5, "a")
    assert order({0: (one,), 1: (one,)}, {(0, "f"): "a", (1, "f"): "a"}) == ({0: one, 1: one},)


def test_planned_shape_that_a_rank_with_the_artifact_cannot_capture_is_left_out() -> None:
    assert order({0: (planned("f", 5, "a"),), 1: ()}, {(0, "f"): "a", (1, "f"): "a"}) == ()


def test_order_is_the_same_whatever_the_order_of_proposals() -> None:
    items = (planned("f", 5, "a"), planned("g", 5, "b"), planned("f", 3, "a"))
    digests = {(0, "f"): "a", (0, "g"): "b"}
    assert order({0: items}, digests) == order({0: items[::-1]}, digests)
