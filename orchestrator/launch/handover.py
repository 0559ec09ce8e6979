"""Where ranks have no store in common, artifacts go from their ranks to other nodes, once to each.

Through the driver into Ray's object store, so that all nodes read one copy; else each node would compile. A
node that gets none says so when it is offered the artifact, and compiles its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warmrank.orchestrator.gang.launcher import Shared
from warmrank.orchestrator.launch.situation import Action, Adopt, AwaitLeader, Demand, Situation, Slot
from warmrank.orchestrator.launch.stages import Stages
from warmrank.worker.results import FunctionResult

Wanted = dict[tuple[int, str, str], dict[int, int]]
"""By rank that has it, function and digest: for each node that lacks it the rank that takes it in."""


def hand_over(
    stages: Stages, situation: Situation, actions: Mapping[Slot, Action], made: Mapping[Slot, FunctionResult]
) -> None:
    """Bring what ranks are about to be offered to their nodes.

    Raises:
        LaunchFailed: a rank failed.
    """
    if stages.shares_store:
        return
    nodes = {seat.rank: seat.node_rank for seat in stages.gang.seats}
    wanted = wanted_by(situation.demands, actions, made, nodes)
    if not wanted:
        return
    asked: dict[int, dict[str, str]] = {}
    for rank, function, digest in wanted:
        asked.setdefault(rank, {})[function] = digest
    answers = stages.ask("load", "hand_out", {rank: (found,) for rank, found in asked.items()}, is_work=False)
    taken: dict[int, dict[str, Shared]] = {}
    for (rank, function, _), takers in wanted.items():
        if (handed := answers[rank].get(function)) is not None:
            shared = Shared(handed)
            for taker in takers.values():
                taken.setdefault(taker, {})[function] = shared
    for function in dict.fromkeys(function for own in taken.values() for function in own):
        arguments = {rank: (function, own[function]) for rank, own in taken.items() if function in own}
        stages.ask("load", "take_in", arguments, is_work=False)


def wanted_by(
    demands: Iterable[Demand],
    actions: Mapping[Slot, Action],
    made: Mapping[Slot, FunctionResult],
    nodes: Mapping[int, int],
) -> Wanted:
    """Who has what ranks on other nodes are to adopt, and who takes it in there: pure."""
    holders = {(function, result.digest): [rank] for (rank, function), result in made.items() if result.ok}
    for demand in demands:
        rank, function = demand.slot
        for digest in filter(None, (demand.held, demand.fits)):
            holders.setdefault((function, digest), []).append(rank)
    having = {key: {nodes[rank] for rank in ranks} for key, ranks in holders.items()}
    wanted: Wanted = {}
    for (rank, function), action in actions.items():
        if isinstance(action, AwaitLeader):
            digest = made[action.leader, function].digest
        elif isinstance(action, Adopt):
            digest = action.digest
        else:
            continue
        key = function, digest
        if key in holders and nodes[rank] not in having[key]:
            wanted.setdefault((holders[key][0], *key), {}).setdefault(nodes[rank], rank)
    return wanted
