"""Brings every function of every rank to an artifact: plan, compile, load or adopt, round after round.

The driver plans once for all ranks, from what the probe found; no rank decides anything, and none has taken
part in a collective before. A compile that fails stops nobody who does not need it: the others go on, and
what is still missing when nobody wants anything any more is one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.causes import WorkerFailure
from orchestrator.errors import CompileForbidden, LaunchFailed
from orchestrator.launch.advance import advance, begin
from orchestrator.launch.failed_compiles import CompileCut, Compiling, avoided, cut_off, failures_of, retries
from orchestrator.launch.leaders import lanes_of
from orchestrator.launch.plan import forbidden, plan_round, rank_classes
from orchestrator.launch.situation import (
    Action,
    Attempt,
    AwaitLeader,
    Compile,
    GiveUp,
    Load,
    Situation,
    Slot,
)
from orchestrator.launch.stages import Stages
from orchestrator.seats import Gang
from worker.results import FunctionProbe, FunctionResult

Ledger = dict[Slot, FunctionResult]
"""What became of every function on every rank."""


def settle_all(
    stages: Stages,
    probes: Mapping[int, tuple[FunctionProbe, ...]],
    *,
    no_compile: bool,
    avoid: Iterable[Compiling] = (),
) -> Ledger:
    """Carry out rounds until no rank wants anything.

    Args:
        stages: of the launch.
        probes: what every rank found.
        no_compile: whether a miss is an error.
        avoid: what was compiled where when former attempts of the launch were cut off; this one compiles it
            elsewhere, where there is an elsewhere.

    Raises:
        CompileForbidden: compiling is forbidden and a plan needs it.
        CompileCut: a leader died or did not answer; says what it compiled.
        LaunchFailed: a rank failed, or something did not compile.
    """
    seats = {seat.rank: seat for seat in stages.gang.seats}
    nodes = nodes_of(stages.gang)
    lanes = lanes_of(nodes.values(), stages.config.ray.num_cpus_per_rank)
    situation = begin(probes, avoided=avoided(avoid, seats))
    ledger: Ledger = {}
    while situation.demands:
        actions = plan_round(situation, max_rounds=stages.config.max_rounds, nodes=nodes, lanes=lanes)
        if no_compile and (misses := forbidden(situation, actions)):
            raise CompileForbidden(misses)
        if planned := rank_classes(situation, actions):
            stages.planned(situation.round, planned)
        attempts = _carry_out(stages, situation, actions, ledger)
        before = len(situation.failed)
        situation = advance(situation, actions, attempts, nodes=nodes)
        for text in retries(situation.failed[before:], situation, seats):
            stages.problem(text)
    if situation.lost:
        stages.fail("compile", failures_of(situation, seats))
    return ledger


def nodes_of(gang: Gang) -> dict[int, int]:
    """Node of every rank."""
    return {seat.rank: seat.node_rank for seat in gang.seats}


def _carry_out(
    stages: Stages, situation: Situation, actions: Mapping[Slot, Action], ledger: Ledger
) -> dict[Slot, Attempt]:
    """Do what a round's plan says; what is settled goes into the ledger."""
    made = _compile(stages, situation, actions)
    results = made | _load(stages, actions, made)
    ledger |= {slot: result for slot, result in results.items() if result.ok}
    return {
        slot: _attempt(slot, action, made, results.get(slot))
        for slot, action in actions.items()
        if not isinstance(action, GiveUp)
    }


def _compile(stages: Stages, situation: Situation, actions: Mapping[Slot, Action]) -> Ledger:
    """Leaders compile, side by side; each its functions one after the other, as the plan orders them."""
    functions: dict[int, list[str]] = {}
    for (rank, function), action in actions.items():
        if isinstance(action, Compile):
            functions.setdefault(rank, []).append(function)
    if not functions:
        return {}
    with stages.stage("compile", tuple(sorted(functions))):
        arguments = {rank: (tuple(names),) for rank, names in functions.items()}
        answers = stages.try_ask("compile", "compile", arguments)
        _check_answers(stages, situation, functions, answers)
        stages.agree_on_silence("compile", functions)
        stages.tell("compile", answers)
    return _by_slot(answers)


def _check_answers(
    stages: Stages,
    situation: Situation,
    functions: Mapping[int, list[str]],
    answers: Mapping[int, tuple[FunctionResult, ...] | WorkerFailure],
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
    # Who dies meanwhile need not be a leader.
    slots = [(failure.rank, function) for failure in failures for function in functions.get(failure.rank, ())]
    try:
        stages.fail("compile", failures, silent=tuple(set(functions) - set(answers)))
    except LaunchFailed as error:
        raise CompileCut(error, cut_off(slots, asked, seats)) from error


def _load(stages: Stages, actions: Mapping[Slot, Action], made: Ledger) -> Ledger:
    """Everybody else loads what it holds or adopts what it is offered."""
    loads: dict[int, list[str]] = {}
    offers: dict[int, dict[str, str]] = {}
    for slot, action in actions.items():
        rank, function = slot
        if isinstance(action, Load):
            loads.setdefault(rank, []).append(function)
        elif offered := _offered(slot, action, made):
            offers.setdefault(rank, {})[function] = offered
    ranks = tuple(sorted(loads.keys() | offers.keys()))
    if not ranks:
        return {}
    with stages.stage("load", ranks):
        arguments = {rank: (tuple(loads.get(rank, ())), offers.get(rank, {})) for rank in ranks}
        answers = stages.ask("load", "settle", arguments)
        stages.agree_on_silence("load", offers)
        stages.tell("load", answers)
    return _by_slot(answers)


def _offered(slot: Slot, action: Action, made: Ledger) -> str:
    """Digest of the artifact that an action hands to a rank; empty where it hands it none."""
    if isinstance(action, Compile | GiveUp):
        return ""
    if isinstance(action, AwaitLeader):
        result = made[action.leader, slot[1]]
        return result.digest if result.ok else ""
    return action.digest


def _attempt(slot: Slot, action: Action, made: Ledger, result: FunctionResult | None) -> Attempt:
    if result is None:
        return Attempt(ok=False, digest="", reason="its leader could not compile it")
    is_compile = isinstance(action, Compile)
    return Attempt(
        ok=result.ok,
        digest=result.digest if is_compile else _offered(slot, action, made),
        reason=result.reason,
        out_of_reach=not (is_compile or result.ok or result.guard_failed),
    )


def _by_slot(answers: Mapping[int, tuple[FunctionResult, ...]]) -> Ledger:
    return {(rank, result.function): result for rank, results in answers.items() for result in results}
