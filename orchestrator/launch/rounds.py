"""Brings every function of every rank to an artifact, in rounds: plan, compile, audit, load or adopt.

The driver plans once for all ranks, from what the probe found; no rank decides anything, and none has taken
part in a collective before. A compile that fails stops nobody who does not need it. Ranks hand over digests
of their traces for an audit; only where two differ, the leader's trace goes to a rank that differs, which
says where. Where ranks have no store in common, artifacts go to other nodes through Ray's object store, once
each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.config.models import positions
from warmrank.orchestrator.errors import CompileForbidden, ForbiddenCompile, LaunchFailed, ranks_text
from warmrank.orchestrator.gang.launcher import Shared
from warmrank.orchestrator.launch.events import AuditOutcome
from warmrank.orchestrator.launch.failures import (
    Compiling,
    avoided,
    cut_off,
    failures_of,
    retries,
)
from warmrank.orchestrator.launch.plan import auditing, forbidden, lanes_of, plan_round, rank_classes
from warmrank.orchestrator.launch.plan_state import (
    Action,
    Adopt,
    Attempt,
    AwaitLeader,
    Compile,
    Demand,
    GiveUp,
    Load,
    PlanState,
    Slot,
    apply_round,
    begin,
    given_up,
    without,
)
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.seats import Gang
from warmrank.worker.results import FunctionProbe, FunctionResult, TraceResult

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
    state: PlanState,
    actions: Mapping[Slot, Action],
    made: Mapping[Slot, FunctionResult],
    traced: Mapping[Slot, TraceResult],
) -> Comparison:
    """Compare every slot's own trace with what it is about to adopt.

    Args:
        stages: of the launch; ranks are asked where traces differ.
        state: before the round.
        actions: its plan.
        made: what leaders compiled.
        traced: what auditors traced.
    """
    traces = {demand.slot: demand.trace for demand in state.demands if demand.trace}
    traces |= {slot: result.trace for slot, result in traced.items() if result.trace}
    compiled = {result.digest for result in made.values() if result.ok and result.outcome == "compiled"}
    fresh = frozenset(compiled | {offer.digest for offer in state.offers if offer.trace})
    makers = dict(_makers(state, actions, made, fresh))
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
    state: PlanState,
    actions: Mapping[Slot, Action],
    made: Mapping[Slot, FunctionResult],
    fresh: frozenset[str],
) -> Iterator[tuple[Slot, tuple[int, str]]]:
    """For every slot that is to adopt what this launch made: who made it, and the digest of its trace."""
    offers = {
        (offer.function, offer.request_key, offer.digest): offer for offer in state.offers if offer.trace
    }
    for demand in state.demands:
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


Wanted = dict[tuple[int, str, str], dict[int, int]]
"""By rank that has it, function and digest: for each node that lacks it the rank that takes it in."""


def hand_over(
    stages: Stages, state: PlanState, actions: Mapping[Slot, Action], made: Mapping[Slot, FunctionResult]
) -> None:
    """Bring what ranks are about to be offered to their nodes.

    Raises:
        LaunchFailed: a rank failed.
    """
    if stages.shares_store:
        return
    nodes = {seat.rank: seat.node_rank for seat in stages.gang.seats}
    wanted = wanted_by(state.demands, actions, made, nodes)
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


Ledger = dict[Slot, FunctionResult]
"""What became of every function on every rank."""


def settle_all(
    stages: Stages,
    probes: Mapping[int, tuple[FunctionProbe, ...]],
    *,
    no_compile: bool,
    avoid: Iterable[Compiling] = (),
    may_wait: Collection[Slot] = (),
) -> Ledger:
    """Carry out rounds until no rank wants anything.

    Args:
        stages: of the launch.
        probes: what every rank found.
        no_compile: whether a miss is an error.
        avoid: what was compiled where when former attempts of the launch were cut off; this one compiles it
            elsewhere, where there is an elsewhere.
        may_wait: what another call may have to run for first: where its function raises, or where it would
            have to be compiled and may not, it is left out of the ledger, and no error.

    Raises:
        CompileForbidden: compiling is forbidden and a plan needs it.
        LaunchFailed: a rank failed, or something did not compile; of lost leaders it says what they compiled.
    """
    seats = {seat.rank: seat for seat in stages.gang.seats}
    nodes = nodes_of(stages.gang)
    lanes = lanes_of(nodes.values(), stages.config.ray.num_cpus_per_rank)
    state = begin(probes, avoided=avoided(avoid, seats), audit=stages.config.audit)
    places = positions(stages.config)
    ledger: Ledger = {}
    while state.demands:
        actions = plan_round(
            state, max_rounds=stages.config.max_rounds, nodes=nodes, lanes=lanes, positions=places
        )
        if no_compile and (misses := forbidden(state, actions)):
            if not _all_wait(misses, may_wait):
                raise CompileForbidden(misses)
            state = without(state, misses)
            continue
        if planned := rank_classes(state, actions):
            stages.planned(planned)
        attempts = _carry_out(stages, state, actions, ledger)
        before = len(state.failed)
        state = apply_round(state, actions, attempts, nodes=nodes)
        for text in retries(state.failed[before:], state, seats):
            stages.problem(text)
    _release(stages, state, ledger)
    if lost := given_up(state, may_wait):
        stages.fail("compile", failures_of(replace(state, lost=lost), seats))
    return ledger


def _all_wait(misses: Iterable[ForbiddenCompile], may_wait: Collection[Slot]) -> bool:
    return all((rank, miss.function) in may_wait for miss in misses for rank in miss.ranks)


def _release(stages: Stages, state: PlanState, ledger: Ledger) -> None:
    """Let other partitions have what this launch compiled, and what it audited of an earlier one.

    What audits found to depend on a rank stays with its own.
    """
    digests = {
        (offer.function, offer.digest)
        for offer in state.offers
        if offer.trace
        and (offer.is_new or offer.audit == "off")
        and (offer.function, offer.request_key) not in state.suspects
    }
    released: dict[int, dict[str, str]] = {}
    for (rank, function), result in ledger.items():
        if (function, result.digest) in digests:
            released.setdefault(rank, {})[function] = result.digest
    if released:
        stages.ask("load", "release", {rank: (found,) for rank, found in released.items()}, is_work=False)


def nodes_of(gang: Gang) -> dict[int, int]:
    """Node of every rank."""
    return {seat.rank: seat.node_rank for seat in gang.seats}


def _carry_out(
    stages: Stages, state: PlanState, actions: Mapping[Slot, Action], ledger: Ledger
) -> dict[Slot, Attempt]:
    """Do what a round's plan says; what is settled goes into the ledger."""
    made, compared = _compile(stages, state, actions)
    hand_over(stages, state, actions, made)
    results = made | _load(stages, actions, made, compared)
    tell(stages, compared, results)
    ledger |= {
        slot: result for slot, result in results.items() if result.ok and slot not in compared.unproven
    }
    return {
        slot: _attempt(slot, action, made, results.get(slot), compared)
        for slot, action in actions.items()
        if not isinstance(action, GiveUp)
    }


def _compile(stages: Stages, state: PlanState, actions: Mapping[Slot, Action]) -> tuple[Ledger, Comparison]:
    """Leaders compile and auditors trace, side by side; each one after the other, as the plan orders them."""
    functions: dict[int, list[str]] = {}
    for (rank, function), action in actions.items():
        if isinstance(action, Compile):
            functions.setdefault(rank, []).append(function)
    traces = auditing(state, actions)
    busy = functions.keys() | traces.keys()
    if not busy:
        return {}, compare(stages, state, actions, {}, {})
    with stages.stage("compile", tuple(sorted(busy))):
        arguments = {
            rank: (tuple(functions.get(rank, ())), tuple(traces.get(rank, ()))) for rank in sorted(busy)
        }
        answers = stages.try_ask("compile", "compile", arguments)
        _check_answers(stages, state, functions, answers, silent=busy - answers.keys())
        stages.agree_on_silence("compile", functions)
        made = {
            rank: tuple(result for result in results if isinstance(result, FunctionResult))
            for rank, results in answers.items()
        }
        stages.tell("compile", made)
        traced = {
            (rank, result.function): result
            for rank, results in answers.items()
            for result in results
            if isinstance(result, TraceResult)
        }
        compared = compare(stages, state, actions, _by_slot(made), traced)
    return _by_slot(made), compared


def _check_answers(
    stages: Stages,
    state: PlanState,
    functions: Mapping[int, Iterable[str]],
    answers: Mapping[int, tuple[FunctionResult | TraceResult, ...] | WorkerFailure],
    *,
    silent: Iterable[int],
) -> None:
    """A function that did not compile is a result; a rank that failed as a whole ends the attempt.

    Raises:
        CompileForbidden: a rank would have had to compile, which is forbidden.
        LaunchFailed: otherwise; says what lost leaders compiled.
    """
    failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
    if not failures:
        return
    seats = {seat.rank: seat for seat in stages.gang.seats}
    asked = {demand.slot: demand.request_key for demand in state.demands}
    # Who dies meanwhile need not be a leader, and an auditor is none to avoid.
    slots = [(failure.rank, function) for failure in failures for function in functions.get(failure.rank, ())]
    try:
        stages.fail("compile", failures, silent=tuple(sorted(silent)))
    except LaunchFailed as error:
        error.compiling = cut_off(slots, asked, seats)
        raise


def _load(stages: Stages, actions: Mapping[Slot, Action], made: Ledger, compared: Comparison) -> Ledger:
    """All others load what they hold or adopt what they are offered; what is unproven is only considered."""
    loads: dict[int, list[str]] = {}
    offers: dict[int, dict[str, str]] = {}
    considered: dict[int, dict[str, str]] = {}
    for slot, action in actions.items():
        rank, function = slot
        if isinstance(action, Load):
            loads.setdefault(rank, []).append(function)
        elif offered := _offered(slot, action, made):
            kind = considered if slot in compared.unproven else offers
            kind.setdefault(rank, {})[function] = offered
    ranks = tuple(sorted(loads.keys() | offers.keys() | considered.keys()))
    if not ranks:
        return {}
    with stages.stage("load", ranks):
        arguments = {
            rank: (
                tuple(loads.get(rank, ())),
                offers.get(rank, {}),
                considered.get(rank, {}),
                tuple(function for function in offers.get(rank, {}) if (rank, function) in compared.makers),
            )
            for rank in ranks
        }
        answers = stages.ask("load", "settle", arguments)
        stages.agree_on_silence("load", offers.keys() | considered.keys())
        settled = {
            rank: tuple(item for item in found if item.function not in considered.get(rank, {}))
            for rank, found in answers.items()
        }
        stages.tell("load", settled)
    return _by_slot(answers)


def _offered(slot: Slot, action: Action, made: Ledger) -> str:
    """Digest of the artifact that an action hands to a rank; empty where it hands it none."""
    if isinstance(action, Compile | GiveUp):
        return ""
    if isinstance(action, AwaitLeader):
        result = made[action.leader, slot[1]]
        return result.digest if result.ok else ""
    return action.digest


def _attempt(
    slot: Slot, action: Action, made: Ledger, result: FunctionResult | None, compared: Comparison
) -> Attempt:
    own = compared.traces.get(slot, "")
    if result is None:
        return Attempt(ok=False, digest="", reason="its leader could not compile it", trace=own)
    is_compile, is_unproven = isinstance(action, Compile), slot in compared.unproven
    return Attempt(
        ok=result.ok and not is_unproven,
        digest=result.digest if is_compile else _offered(slot, action, made),
        reason=result.reason,
        error=result.error,
        out_of_reach=not (is_compile or result.ok or result.guard_failed),
        takes=result.ok and is_unproven,
        trace=own if not is_compile else result.trace if result.digest in compared.fresh else "",
        difference=compared.differences.get(slot, ""),
    )


def _by_slot(answers: Mapping[int, tuple[FunctionResult, ...]]) -> Ledger:
    return {(rank, result.function): result for rank, results in answers.items() for result in results}
