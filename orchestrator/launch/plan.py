"""The plan of a round: one action for every rank and function; pure.

A round goes: `plan_round`, the driver carries it out, `advance`. Within a class a rank loads what it holds,
else adopts what fits or is offered, else one leader compiles and the others wait for it, to adopt the result.
Whoever refuses an offer (its guards do not hold there) stays for the next round, and so does a class whose
leader failed: another one tries, on another node where there is one; a class whose second leader failed, or
whose function itself raised, is given up, and nobody else. The rounds end: each leaves every rank that stays
one offer less, or its class one leader less, and where no offer is left a leader is satisfied; a rank that
has refused ``max_rounds`` offers compiles for itself.

Nothing here does I/O, and no rank decides anything alone. All of it is linear in ranks times functions, but
for sorting the classes that compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.errors import ForbiddenCompile
from orchestrator.launch.advance import advance, begin
from orchestrator.launch.leaders import NOWHERE, Leaders, Tried
from orchestrator.launch.situation import (
    Action,
    Adopt,
    Attempt,
    Avoided,
    AwaitLeader,
    ClassKey,
    Compile,
    Demand,
    Failed,
    GiveUp,
    Load,
    Offer,
    Situation,
    Slot,
)
from orchestrator.show.events import ClassAction, RankClass

__all__ = [
    "MAX_LEADERS", "Action", "Adopt", "Attempt", "Avoided", "AwaitLeader", "Compile", "Demand", "Failed",
    "GiveUp", "Load", "Offer", "Situation", "Slot", "advance", "begin", "classes", "forbidden", "plan_round",
    "rank_classes",
]  # fmt: skip

MAX_LEADERS = 2
"""Leaders that try to compile for a class before it is given up."""

Asked = tuple[str, str]
"""Function and request key: what an artifact is offered for."""


def classes(demands: Iterable[Demand]) -> dict[ClassKey, list[Demand]]:
    """Demands by class, in order of their first member."""
    found: dict[ClassKey, list[Demand]] = {}
    for demand in demands:
        found.setdefault(demand.class_key, []).append(demand)
    return found


def plan_round(
    situation: Situation,
    *,
    max_rounds: int,
    nodes: Mapping[int, int] | None = None,
    lanes: Mapping[int, int] | None = None,
) -> dict[Slot, Action]:
    """One action for every demand; what compiles comes last, the longest first.

    Args:
        situation: what is wanted and what exists.
        max_rounds: a rank that has refused so many offers compiles for itself.
        nodes: node of every rank; when given, leaders are spread over nodes, then over a node's ranks;
            otherwise the lowest rank of a class leads it.
        lanes: by node, how many leaders should work at a time; otherwise one a rank.
    """
    offers = _offers_by_class(situation.offers)
    loads = {demand.held: Load(digest=demand.held) for demand in situation.demands if demand.held}
    num_failed = Counter(failed.class_key for failed in situation.failed)
    hopeless = {failed.class_key for failed in situation.failed if failed.is_final}
    actions: dict[Slot, Action] = {}
    needy: dict[ClassKey, list[Demand]] = {}
    for demand in situation.demands:
        alone = demand.num_refused >= max_rounds
        asked = demand.function, demand.request_key
        action = None if alone else _without_compiling(demand, loads, offers.get(asked, {}))
        if action is not None:
            actions[demand.slot] = action
            continue
        key = demand.own_key if alone else demand.class_key
        if key in hopeless or num_failed[key] >= MAX_LEADERS:
            actions[demand.slot] = GiveUp()
        else:
            needy.setdefault(key, []).append(demand)
    leaders = _leaders(needy, _tried(situation, nodes), Leaders(nodes, lanes))
    for key, leader in leaders.items():
        wait = AwaitLeader(leader=leader)
        for demand in needy[key]:
            alone = demand.num_refused >= max_rounds
            actions[demand.slot] = Compile(alone=alone) if demand.rank == leader else wait
    return actions


def forbidden(situation: Situation, actions: Mapping[Slot, Action]) -> tuple[ForbiddenCompile, ...]:
    """Every function that the plan would compile, with its ranks grouped by reason."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for demand in situation.demands:
        if isinstance(actions[demand.slot], Compile | AwaitLeader):
            ranks.setdefault((demand.function, demand.reason), []).append(demand.rank)
    return tuple(
        ForbiddenCompile(function=function, reason=reason, ranks=tuple(members))
        for (function, reason), members in ranks.items()
    )


def rank_classes(situation: Situation, actions: Mapping[Slot, Action]) -> tuple[RankClass, ...]:
    """The plan as people see it; what was given up is not in it."""
    found: dict[tuple[str, str, ClassAction, int | None], list[int]] = {}
    for demand in situation.demands:
        action = actions[demand.slot]
        if not isinstance(action, GiveUp):
            kind, leader = _seen(demand.rank, action)
            found.setdefault((demand.function, demand.request_key, kind, leader), []).append(demand.rank)
    return tuple(
        RankClass(function=function, request_key=key, ranks=tuple(ranks), action=kind, leader=leader)
        for (function, key, kind, leader), ranks in found.items()
    )


def _seen(rank: int, action: Load | Adopt | Compile | AwaitLeader) -> tuple[ClassAction, int | None]:
    match action:
        case Load():
            return "load", None
        case Adopt():
            return "adopt", None
        case Compile():
            return "compile", rank
        case AwaitLeader():
            return "compile", action.leader


def _without_compiling(
    demand: Demand, loads: Mapping[str, Load], offers: Mapping[str, Adopt]
) -> Load | Adopt | None:
    """One of the actions that equal ranks share: thousands apart take longer to make than to plan."""
    if demand.held and demand.held not in demand.refused:
        return loads[demand.held]
    if demand.fits and demand.fits not in demand.refused:
        return offers.get(demand.fits) or Adopt(digest=demand.fits, from_rank=None)
    for digest, adopt in offers.items():  # ends after at most one step more than it has refused
        if digest not in demand.refused:
            return adopt
    return None


def _leaders(
    needy: Mapping[ClassKey, Sequence[Demand]], tried: Mapping[Asked, Tried], leaders: Leaders
) -> dict[ClassKey, int]:
    """A leader for every class, the longest compiles first."""
    # Calls of one function have one leader: the artifact of the first may cover the others.
    families: dict[ClassKey, list[ClassKey]] = {}
    for key in needy:
        families.setdefault((key[0].partition("[")[0], *key[1:]), []).append(key)
    costs = {family: sum(_cost(needy[key]) for key in keys) for family, keys in families.items()}
    found: dict[ClassKey, int] = {}
    for family in sorted(families, key=lambda family: -costs[family]):  # stable: equal ones in call order
        leader: int | None = None
        for key in families[family]:
            ranks = {demand.rank for demand in needy[key]}
            where = tried.get(key[:2], NOWHERE)
            if leader is None or leader not in ranks or leader in where.ranks:
                leader = leaders.choose(ranks, _cost(needy[key]), where)
            else:
                leaders.add(leader, _cost(needy[key]))
            found[key] = leader
    return found


def _cost(members: Sequence[Demand]) -> int:
    return max(1, *(demand.cost for demand in members))


def _tried(situation: Situation, nodes: Mapping[int, int] | None) -> dict[Asked, Tried]:
    """Where what is asked for was tried in vain, in this attempt of the launch and before."""
    ranks: dict[Asked, set[int]] = {}
    places: dict[Asked, set[int]] = {}
    for failed in situation.failed:
        asked = failed.class_key[:2]
        ranks.setdefault(asked, set()).add(failed.rank)
        if nodes is not None:
            places.setdefault(asked, set()).add(nodes[failed.rank])
    for avoided in situation.avoided:
        asked = avoided.function, avoided.request_key
        places.setdefault(asked, set()).add(avoided.node)
        if avoided.rank is not None:
            ranks.setdefault(asked, set()).add(avoided.rank)
    return {
        asked: Tried(ranks=frozenset(ranks.get(asked, ())), nodes=frozenset(places.get(asked, ())))
        for asked in ranks.keys() | places.keys()
    }


def _offers_by_class(offers: Iterable[Offer]) -> dict[Asked, dict[str, Adopt]]:
    found: dict[Asked, dict[str, Adopt]] = {}
    for offer in offers:
        adopt = Adopt(digest=offer.digest, from_rank=offer.from_rank)
        found.setdefault((offer.function, offer.request_key), {})[offer.digest] = adopt
    return found
