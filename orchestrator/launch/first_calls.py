"""Runs the workload's calls, in step on all ranks, until a whole round of them needs nothing new.

A call may change what the conditions of the next one hang on: a prefill makes the KV cache, a layer makes a
buffer when it is first used. What a call needs then is planned, compiled by one rank of a class, adopted by
the others, captured, counted and published as everything else. Ranks look at a call before any of them runs
it, so that none compiles while the others wait for it in a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.launch import steps
from warmrank.orchestrator.launch.rounds import Ledger, settle_all
from warmrank.orchestrator.launch.stages import Stages
from warmrank.worker.results import FunctionProbe, FunctionResult, function_of_unit

Probes = Mapping[int, tuple[FunctionProbe, ...]]
"""Found by each rank that is named."""

MAX_ROUNDS = 5
"""A static KV cache takes three: decode finds it made, then prefill does, then nothing is new."""


def run_calls(
    stages: Stages, probes: Probes, ledger: Ledger, *, no_compile: bool
) -> dict[int, tuple[FunctionProbe, ...]]:
    """Run every call as the first request would, and again until a round needs nothing new.

    Args:
        stages: of the launch.
        probes: of the workload's calls, before any of them ran.
        ledger: outcome of every function; takes in what calls needed later, and the seconds.
        no_compile: if a miss is an error.

    Returns:
        The probes, and those of what calls needed later.

    Raises:
        CompileForbidden: compiling is forbidden, and a call needs it.
        LaunchFailed: a rank failed, or each of `MAX_ROUNDS` rounds needed something new.
    """
    num_calls = {rank: len(found) for rank, found in probes.items()}
    found = dict(probes)
    start = 1  # what the first call needs was just settled
    unsettled: dict[int, tuple[FunctionProbe, ...]] = {}
    for _ in range(MAX_ROUNDS):
        unsettled.clear()
        place = start
        while place <= max(num_calls.values()):
            place, needed, changed = _run(stages, ledger, num_calls, place)
            unsettled |= changed | needed
            if needed:
                found |= {rank: _with(found[rank], own) for rank, own in needed.items()}
                ledger |= settle_all(stages, needed, no_compile=no_compile)
                steps.capture_later(stages, ledger, needed)
        if not unsettled:
            break
        start = 0
    else:
        stages.fail("first_call", [_unsettled(rank, own[-1]) for rank, own in unsettled.items()])
    return found


def _run(
    stages: Stages, ledger: Ledger, num_calls: Mapping[int, int], place: int
) -> tuple[int, dict[int, tuple[FunctionProbe, ...]], dict[int, tuple[FunctionProbe, ...]]]:
    """Run calls from a place on, until one needs what is not loaded.

    Returns:
        The place to go on at; by rank, the probe of a call that needs something before it runs; by rank, the
        probes of calls that nothing loaded fits after the last one.
    """
    changed: dict[int, tuple[FunctionProbe, ...]] = {}
    with stages.stage("first_call"):
        while place <= max(num_calls.values()):
            ranks = {rank: (place,) for rank, num in num_calls.items() if place <= num}
            answers = stages.ask("first_call", "first_call", ranks)
            ran = {
                rank: tuple(item for item in answer if isinstance(item, FunctionResult))
                for rank, answer in answers.items()
            }
            steps.note(stages, ledger, "first_call", ran)
            misses = {
                rank: own
                for rank, answer in answers.items()
                if (own := tuple(item for item in answer if isinstance(item, FunctionProbe)))
            }
            changed |= {rank: own for rank, own in misses.items() if place == num_calls[rank]}
            place += 1
            if needed := {rank: own for rank, own in misses.items() if rank not in changed}:
                return place, needed, changed
    return place, {}, changed


def _with(found: Sequence[FunctionProbe], later: Sequence[FunctionProbe]) -> tuple[FunctionProbe, ...]:
    """Probes, and later ones, which stand for those of the same name."""
    return tuple({probe.function: probe for probe in (*found, *later)}.values())


def _unsettled(rank: int, probe: FunctionProbe) -> WorkerFailure:
    function = function_of_unit(probe.function)
    return WorkerFailure(
        rank=rank,
        stage="first_call",
        kind="DoesNotSettle",
        function=function,
        message=f"{function} needs another artifact after {MAX_ROUNDS} rounds of all calls: {probe.reason}",
        remedy="keep what changes from call to call in a tensor, or pass it as an argument",
    )
