"""Brings every function of every rank to an artifact: plan, compile, load or adopt, round after round.

The driver plans once for all ranks, from what the probe found; no rank decides anything, and none has taken
part in a collective before. A compile that fails stops nobody who does not need it: the others go on, and
what is still missing when nobody wants anything any more is one error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.config.models import positions
from warmrank.orchestrator.errors import CompileForbidden, ForbiddenCompile, LaunchFailed
from warmrank.orchestrator.launch import audits
from warmrank.orchestrator.launch.advance import advance, begin, given_up, without
from warmrank.orchestrator.launch.audits import Comparison
from warmrank.orchestrator.launch.failed_compiles import (
    CompileCut,
    Compiling,
    avoided,
    cut_off,
    failures_of,
    retries,
)
from warmrank.orchestrator.launch.handover import hand_over
from warmrank.orchestrator.launch.leaders import lanes_of
from warmrank.orchestrator.launch.plan import auditing, forbidden, plan_round, rank_classes
from warmrank.orchestrator.launch.situation import (
    Action,
    Attempt,
    AwaitLeader,
    Compile,
    GiveUp,
    Load,
    Situation,
    Slot,
)
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.seats import Gang
from warmrank.worker.results import FunctionProbe, FunctionResult, TraceResult

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
        CompileCut: a leader died or did not answer; says what it compiled.
        LaunchFailed: a rank failed, or something did not compile.
    """
    seats = {seat.rank: seat for seat in stages.gang.seats}
    nodes = nodes_of(stages.gang)
    lanes = lanes_of(nodes.values(), stages.config.ray.num_cpus_per_rank)
    situation = begin(probes, avoided=avoided(avoid, seats), audit=stages.config.audit)
    places = positions(stages.config)
    ledger: Ledger = {}
    while situation.demands:
        actions = plan_round(
            situation, max_rounds=stages.config.max_rounds, nodes=nodes, lanes=lanes, positions=places
        )
        if no_compile and (misses := forbidden(situation, actions)):
            if not _all_wait(misses, may_wait):
                raise CompileForbidden(misses)
            situation = without(situation, misses)
            continue
        if planned := rank_classes(situation, actions):
            stages.planned(planned)
        attempts = _carry_out(stages, situation, actions, ledger)
        before = len(situation.failed)
        situation = advance(situation, actions, attempts, nodes=nodes)
        for text in retries(situation.failed[before:], situation, seats):
            stages.problem(text)
    _release(stages, situation, ledger)
    if lost := given_up(situation, may_wait):
        stages.fail("compile", failures_of(replace(situation, lost=lost), seats))
    return ledger


def _all_wait(misses: Iterable[ForbiddenCompile], may_wait: Collection[Slot]) -> bool:
    return all((rank, miss.function) in may_wait for miss in misses for rank in miss.ranks)


def _release(stages: Stages, situation: Situation, ledger: Ledger) -> None:
    """Let other partitions have what this launch compiled, and what it audited of an earlier one.

    What audits found to depend on a rank stays with its own.
    """
    digests = {
        (offer.function, offer.digest)
        for offer in situation.offers
        if offer.trace
        and (offer.is_new or offer.audit == "off")
        and (offer.function, offer.request_key) not in situation.suspects
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
    stages: Stages, situation: Situation, actions: Mapping[Slot, Action], ledger: Ledger
) -> dict[Slot, Attempt]:
    """Do what a round's plan says; what is settled goes into the ledger."""
    made, compared = _compile(stages, situation, actions)
    hand_over(stages, situation, actions, made)
    results = made | _load(stages, actions, made, compared)
    audits.tell(stages, compared, results)
    ledger |= {
        slot: result for slot, result in results.items() if result.ok and slot not in compared.unproven
    }
    return {
        slot: _attempt(slot, action, made, results.get(slot), compared)
        for slot, action in actions.items()
        if not isinstance(action, GiveUp)
    }


def _compile(
    stages: Stages, situation: Situation, actions: Mapping[Slot, Action]
) -> tuple[Ledger, Comparison]:
    """Leaders compile and auditors trace, side by side; each one after the other, as the plan orders them."""
    functions: dict[int, list[str]] = {}
    for (rank, function), action in actions.items():
        if isinstance(action, Compile):
            functions.setdefault(rank, []).append(function)
    traces = auditing(situation, actions)
    busy = functions.keys() | traces.keys()
    if not busy:
        return {}, audits.compare(stages, situation, actions, {}, {})
    with stages.stage("compile", tuple(sorted(busy))):
        arguments = {
            rank: (tuple(functions.get(rank, ())), tuple(traces.get(rank, ()))) for rank in sorted(busy)
        }
        answers = stages.try_ask("compile", "compile", arguments)
        _check_answers(stages, situation, functions, answers, silent=busy - answers.keys())
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
        compared = audits.compare(stages, situation, actions, _by_slot(made), traced)
    return _by_slot(made), compared


def _check_answers(
    stages: Stages,
    situation: Situation,
    functions: Mapping[int, Iterable[str]],
    answers: Mapping[int, tuple[FunctionResult | TraceResult, ...] | WorkerFailure],
    *,
    silent: Iterable[int],
) -> None:
    """A function that did not compile is a result; a rank that failed as a whole ends the attempt.

    Raises:
        CompileForbidden: a rank would have had to compile, which is forbidden.
        CompileCut: otherwise.
    """
    failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
    if not failures:
        return
    seats = {seat.rank: seat for seat in stages.gang.seats}
    asked = {demand.slot: demand.request_key for demand in situation.demands}
    # Who dies meanwhile need not be a leader, and an auditor is none to avoid.
    slots = [(failure.rank, function) for failure in failures for function in functions.get(failure.rank, ())]
    try:
        stages.fail("compile", failures, silent=tuple(sorted(silent)))
    except LaunchFailed as error:
        raise CompileCut(error, cut_off(slots, asked, seats)) from error


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
        out_of_reach=not (is_compile or result.ok or result.guard_failed),
        takes=result.ok and is_unproven,
        trace=own if not is_compile else result.trace if result.digest in compared.fresh else "",
        difference=compared.differences.get(slot, ""),
    )


def _by_slot(answers: Mapping[int, tuple[FunctionResult, ...]]) -> Ledger:
    return {(rank, result.function): result for rank, results in answers.items() for result in results}
