"""The planner of a launch, from what the ranks found to the last round, with ranks that only answer."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.scale_parts.world import World, digest_of, probes, proposals
from warmrank.orchestrator.launch.plan import (
    Action,
    Attempt,
    Cluster,
    Slot,
    apply_round,
    begin,
    plan_round,
    rank_classes,
)
from warmrank.orchestrator.launch.stages import order
from warmrank.worker.results import FunctionProbe

MAX_ROUNDS = 4


def cold(world: World) -> dict[str, int]:
    """Nobody has anything; odd ranks refuse what the leader of their class made, and get one of their own."""
    return settle(world, probes(world, state="miss"), refusing=True)


def warm(world: World) -> dict[str, int]:
    """Everybody holds what it needs, and loads it."""
    return settle(world, probes(world, state="hit"))


def resized(world: World) -> dict[str, int]:
    """Everybody is offered what a launch of another size made, and adopts it."""
    return settle(world, probes(world, state="adoptable"))


def captures(world: World) -> int:
    """Steps in which all ranks capture."""
    digests = {
        (rank, probe.function): probe.digest
        for rank, own in probes(world, state="hit").items()
        for probe in own
    }
    return len(order(proposals(world), digests))


def settle(
    world: World, found: Mapping[int, tuple[FunctionProbe, ...]], *, refusing: bool = False
) -> dict[str, int]:
    """Plan, pretend to carry out, and plan again, until nobody wants anything.

    Returns:
        Rounds, how many functions of ranks were compiled, and how many classes were seen.
    """
    state = begin(found, Cluster(nodes=world.nodes(), max_rounds=MAX_ROUNDS))
    num_compiled = num_classes = 0
    while state.demands:
        actions = plan_round(state)
        num_classes += len(rank_classes(state, actions))
        made = {
            slot: _made(world, slot, state.round)
            for slot, action in actions.items()
            if action.kind == "compile"
        }
        num_compiled += len(made)
        attempts = {
            slot: _attempt(slot, action, made, refuses=refusing and slot[0] % 2 == 1)
            for slot, action in actions.items()
        }
        state = apply_round(state, actions, attempts)
    return {"rounds": state.round, "compiled": num_compiled, "classes": num_classes}


def _made(world: World, slot: Slot, number: int) -> str:
    rank, function = slot
    stem = digest_of(function, world.stage(rank)).sha256
    return f"{number}{stem[1:]}"


def _attempt(slot: Slot, action: Action, made: Mapping[Slot, str], *, refuses: bool) -> Attempt:
    """Who refuses at all refuses what the first round's leaders made, and takes what its own class makes."""
    if action.kind == "compile":
        return Attempt(ok=True, digest=made[slot])
    if action.kind == "give up":
        raise TypeError(f"no leader failed, and yet the plan says {action}")
    offered = action.digest if action.leader is None else made[action.leader, slot[1]]
    if refuses and offered.startswith("0"):
        return Attempt(ok=False, digest=offered, reason="another constant was burned in")
    return Attempt(ok=True, digest=offered)
