"""Compares what ranks traced for an audit with what leaders compiled, before anybody adopts it.

Ranks hand over digests; only where two differ, the leader's trace goes to a rank that differs, which says
where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.launch.events import AuditOutcome
from warmrank.orchestrator.launch.situation import Action, Adopt, AwaitLeader, Situation, Slot
from warmrank.orchestrator.launch.stages import Stages
from warmrank.worker.results import FunctionResult, TraceResult

_MAX_EXPLAINED = 16
"""Different traces of one function that are explained; further ones are only said to differ."""

_UNEXPLAINED = "its trace differs as well"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What audits showed in a round.

    Attributes:
        traces: digest of the trace that each slot has made, now or before.
        differences: first difference of each slot that traces otherwise than what it was to adopt.
        unproven: slots that must not adopt what they were to: these, and those that wait for them.
        fresh: digests that this launch compiled; what a cache already held was audited when it was made.
        makers: for every slot that is to adopt what this launch made, who made it, and its trace's digest.
        traced: what was traced now.
    """

    traces: Mapping[Slot, str]
    differences: Mapping[Slot, str]
    unproven: frozenset[Slot]
    fresh: frozenset[str]
    makers: Mapping[Slot, tuple[int, str]]
    traced: Mapping[Slot, TraceResult] = field(default_factory=dict)


def compare(
    stages: Stages,
    situation: Situation,
    actions: Mapping[Slot, Action],
    made: Mapping[Slot, FunctionResult],
    traced: Mapping[Slot, TraceResult],
) -> Comparison:
    """Compare every slot's own trace with what it is about to adopt.

    Args:
        stages: of the launch; ranks are asked where traces differ.
        situation: before the round.
        actions: its plan.
        made: what leaders compiled.
        traced: what auditors traced.
    """
    traces = {demand.slot: demand.trace for demand in situation.demands if demand.trace}
    traces |= {slot: result.trace for slot, result in traced.items() if result.trace}
    compiled = {result.digest for result in made.values() if result.ok and result.outcome == "compiled"}
    fresh = frozenset(compiled | {offer.digest for offer in situation.offers if offer.trace})
    makers = dict(_makers(situation, actions, made, fresh))
    differing = [
        slot
        for slot, (_, wanted) in makers.items()
        if traces.get(slot, "" if slot in traced else wanted) != wanted
    ]
    unproven = {
        slot
        for slot, (_, wanted) in makers.items()
        if slot not in traces
        and any(traces.get((rank, slot[1])) != wanted for rank in _auditors(actions[slot]))
    }
    return Comparison(
        traces=traces,
        differences=_explained(stages, differing, makers, traces, traced),
        unproven=frozenset((*differing, *unproven)),
        fresh=fresh,
        makers=makers,
        traced=traced,
    )


def tell(stages: Stages, compared: Comparison, results: Mapping[Slot, FunctionResult]) -> None:
    """Tell the listener what audits showed; a difference that no condition shows is a problem as well.

    Args:
        stages: of the launch.
        compared: what audits showed.
        results: what came of every slot; of one that is unproven, whether it could adopt.
    """
    alike: dict[tuple[str, int, AuditOutcome, str], list[Slot]] = {}
    for slot, (maker, _) in compared.makers.items():
        if slot not in compared.traces and slot not in compared.differences:
            continue
        difference = compared.differences.get(slot, "")
        outcome = _outcome(results[slot]) if difference else "equal"
        alike.setdefault((slot[1], maker, outcome, difference), []).append(slot)
    for (function, maker, outcome, difference), slots in alike.items():
        traced = [compared.traced[slot] for slot in slots if slot in compared.traced]
        ranks = tuple(sorted(rank for rank, _ in slots))
        stages.audited(function, maker, ranks, outcome, difference, traced)
        if outcome == "differs":
            stages.problem(_problem(function, maker, ranks, difference))


def _outcome(result: FunctionResult) -> AuditOutcome:
    """What keeps a rank from an artifact of another trace, beside the audit."""
    if result.ok:
        return "differs"
    return "guarded" if result.guard_failed else "apart"


def _problem(function: str, maker: int, ranks: tuple[int, ...], difference: str) -> str:
    return (
        f"audit: {function} is traced otherwise on {ranks_text(ranks)} than on rank {maker}, and no "
        f"condition says so; what rank {maker} compiled is not used there, and nothing of the function is "
        f"stored: {difference}"
    )


def _makers(
    situation: Situation,
    actions: Mapping[Slot, Action],
    made: Mapping[Slot, FunctionResult],
    fresh: frozenset[str],
) -> Iterator[tuple[Slot, tuple[int, str]]]:
    """For every slot that is to adopt what this launch made: who made it, and the digest of its trace."""
    offers = {
        (offer.function, offer.request_key, offer.digest): offer for offer in situation.offers if offer.trace
    }
    for demand in situation.demands:
        action = actions[demand.slot]
        if isinstance(action, AwaitLeader):
            result = made[action.leader, demand.function]
            if result.ok and result.trace and result.digest in fresh:
                yield demand.slot, (action.leader, result.trace)
        elif isinstance(action, Adopt):
            offer = offers.get((demand.function, demand.request_key, action.digest))
            if offer is not None and offer.from_rank is not None:
                yield demand.slot, (offer.from_rank, offer.trace)


def _auditors(action: Action) -> tuple[int, ...]:
    return action.auditors if isinstance(action, Adopt | AwaitLeader) else ()


def _explained(
    stages: Stages,
    differing: Iterable[Slot],
    makers: Mapping[Slot, tuple[int, str]],
    traces: Mapping[Slot, str],
    traced: Mapping[Slot, TraceResult],
) -> dict[Slot, str]:
    """The first difference of each slot, in words; equal ones are asked for once."""
    kinds: dict[tuple[int, str], dict[str, list[Slot]]] = {}
    found: dict[Slot, str] = {}
    for slot in differing:
        own = traces.get(slot, "")
        if own:
            kinds.setdefault((makers[slot][0], slot[1]), {}).setdefault(own, []).append(slot)
        else:
            found[slot] = f"it does not trace there: {traced[slot].reason}"
    for (maker, function), by_trace in kinds.items():
        text = stages.ask("compile", "trace", {maker: (function,)}, is_work=False)[maker]
        first = [slots[0] for slots in by_trace.values()][:_MAX_EXPLAINED]
        asked = {rank: (function, text) for rank, _ in first}
        words = stages.ask("compile", "difference", asked, is_work=False)
        for slots in by_trace.values():
            said = words.get(slots[0][0], "") or _UNEXPLAINED
            found |= dict.fromkeys(slots, said)
    return found
