"""Brings every function of every rank to an artifact: plan, compile, load or adopt, round after round."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.errors import CompileForbidden
from orchestrator.gang.launcher import Gang
from orchestrator.launch.plan import (
    Action,
    Adopt,
    Attempt,
    AwaitLeader,
    Compile,
    Load,
    Slot,
    advance,
    begin,
    forbidden,
    plan_round,
)
from orchestrator.launch.stages import Stages
from worker.results import FunctionProbe, FunctionResult

Ledger = dict[Slot, FunctionResult]
"""What became of every function on every rank."""


def settle_all(
    stages: Stages,
    probes: Mapping[int, tuple[FunctionProbe, ...]],
    *,
    no_compile: bool,
) -> Ledger:
    """Carry out rounds until no rank wants anything.

    Raises:
        CompileForbidden: compiling is forbidden and a plan needs it.
        LaunchFailed: a rank failed.
    """
    nodes = nodes_of(stages.gang)
    situation = begin(probes)
    ledger: Ledger = {}
    while situation.demands:
        actions = plan_round(situation, max_rounds=stages.config.max_rounds, nodes=nodes)
        if no_compile and (misses := forbidden(situation, actions)):
            raise CompileForbidden(misses)
        made = _compile(stages, actions)
        results = made | _load(stages, actions, made)
        ledger |= {slot: result for slot, result in results.items() if result.ok}
        attempts = {slot: _attempt(slot, action, made, results[slot]) for slot, action in actions.items()}
        situation = advance(situation, actions, attempts)
    return ledger


def nodes_of(gang: Gang) -> dict[int, int]:
    """Node of every rank."""
    return {seat.rank: seat.node_rank for seat in gang.seats}


def _compile(stages: Stages, actions: Mapping[Slot, Action]) -> Ledger:
    """Leaders compile, side by side."""
    functions: dict[int, tuple[str, ...]] = {}
    for (rank, function), action in actions.items():
        if isinstance(action, Compile):
            functions[rank] = (*functions.get(rank, ()), function)
    if not functions:
        return {}
    with stages.stage("compile", tuple(sorted(functions))):
        arguments = {rank: (names,) for rank, names in functions.items()}
        answers = stages.ask("compile", "compile", arguments)
        stages.agree_on_silence("compile", functions)
        stages.tell("compile", answers)
    return _by_slot(answers)


def _load(stages: Stages, actions: Mapping[Slot, Action], made: Ledger) -> Ledger:
    """Everybody else loads what it holds or adopts what it is offered."""
    loads: dict[int, list[str]] = {}
    offers: dict[int, dict[str, str]] = {}
    for slot, action in actions.items():
        rank, function = slot
        if isinstance(action, Load):
            loads.setdefault(rank, []).append(function)
        elif not isinstance(action, Compile):
            offers.setdefault(rank, {})[function] = _offered(slot, action, made)
    ranks = tuple(sorted(loads.keys() | offers.keys()))
    if not ranks:
        return {}
    with stages.stage("load", ranks):
        arguments = {rank: (tuple(loads.get(rank, ())), offers.get(rank, {})) for rank in ranks}
        answers = stages.ask("load", "settle", arguments)
        stages.agree_on_silence("load", offers)
        stages.tell("load", answers)
    return _by_slot(answers)


def _offered(slot: Slot, action: Load | Adopt | AwaitLeader, made: Ledger) -> str:
    if isinstance(action, AwaitLeader):
        return made[action.leader, slot[1]].digest
    return action.digest


def _attempt(slot: Slot, action: Action, made: Ledger, result: FunctionResult) -> Attempt:
    digest = result.digest if isinstance(action, Compile) else _offered(slot, action, made)
    return Attempt(ok=result.ok, digest=digest, reason=result.reason)


def _by_slot(answers: Mapping[int, tuple[FunctionResult, ...]]) -> Ledger:
    return {(rank, result.function): result for rank, results in answers.items() for result in results}
