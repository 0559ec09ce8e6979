"""The stages of a launch around the plan: each asks every rank the same, in step.

Calls run in step until a whole round of them needs nothing new, because a call may change what the conditions
of the next one hang on (a prefill makes the KV cache). Ranks look at a call before any of them runs it, so
that none compiles while the others wait for it in a collective. They capture together, for graphs hold
collectives, the largest first, so that smaller ones fit into the pool; what comes from a plan is captured by
all ranks that have the artifact, or by none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from warmrank.cache_store.records.manifest import environments_of
from warmrank.cache_store.text import changed_components, grouped
from warmrank.orchestrator.config.models import packed_ranks
from warmrank.orchestrator.config.reading import declared_caches
from warmrank.orchestrator.errors import FailureKind, WorkerFailure, ranks_text
from warmrank.orchestrator.gang.rank_host import RankHost, init_of
from warmrank.orchestrator.launch.report import NodeFetch, NodeReport
from warmrank.orchestrator.launch.rounds import Ledger, settle_all
from warmrank.orchestrator.launch.run import Run
from warmrank.orchestrator.nodes import straddle_text
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import (
    CaptureProposal,
    FunctionProbe,
    FunctionResult,
    PlannedCapture,
    Verification,
    function_of_unit,
)

if TYPE_CHECKING:
    from warmrank.orchestrator.stores import Access

Proposals = Mapping[int, tuple[CaptureProposal, ...]]
Results = dict[int, tuple[FunctionResult, ...]]
Probes = dict[int, tuple[FunctionProbe, ...]]
Step = dict[int, CaptureProposal]  # captures of each rank that takes part in a step

MAX_ROUNDS = 5  # A static KV cache takes three: decode finds it made, then prefill does, then nothing is new


def open_store(run: Run) -> Access | None:
    """Open the store in the driver; one that is away is a problem, not an error, unless it is required.

    Raises:
        cache_store.errors.StoreError: what is there cannot be used, or a required place is away.
    """
    from warmrank.orchestrator.stores import access

    if run.config.store is None:
        return None
    found = access(run.config.store)
    if found.store is None:
        run.problem(f"launched without the store: {found.tiers[-1].reason}")
    else:
        for problem in found.store.problems:
            run.problem(f"store: {problem}")
    return found


def start(run: Run, access: Access | None, *, no_compile: bool) -> dict[int, dict[str, str]]:
    """Start all ranks and let them meet; returns the environment of each."""
    config, store_away = run.config, ""
    if access is not None:
        config = config.model_copy(update={"store": access.for_ranks or access.config})
        store_away = access.tiers[-1].reason if access.for_ranks is None else ""
    run.shares_store = access is not None and access.for_ranks is not None
    with run.stage("start"):
        gang = run.start()
        if straddling := straddle_text(config.ray.pack, packed_ranks(config), gang.placements):
            run.problem(straddling)
        init = partial(
            init_of,
            config,
            master_addr=gang.master_addr,
            master_port=gang.master_port,
            no_compile=no_compile,
            store_away=store_away,
        )
        inits = {placement.rank: (init(placement),) for placement in gang.placements}
        opened = run.ask("start", RankHost.open, inits)
    problems = grouped((answer.problem, rank) for rank, answer in opened.items() if answer.problem)
    for problem, ranks in problems.items():
        go = "goes" if len(ranks) == 1 else "go"
        run.problem(f"{ranks_text(ranks)} {go} on without the store: {problem}")
    environments = {rank: answer.environment for rank, answer in opened.items()}
    # Ranks in different environments share nothing, which is worth knowing.
    found = environments_of(environments)
    for other in found.others:
        changes = "; ".join(map(str, changed_components(found.environment, other.environment)))
        run.problem(f"{ranks_text(other.ranks)}: another environment than rank 0: {changes}")
    return environments


def node_artifacts(run: Run) -> tuple[NodeReport, ...]:
    """The node artifacts of every node that has node caches, in order.

    The launch is committed by now, so a rank that cannot say it any more is a problem, not the end of all.
    """
    if not declared_caches(run.config):
        return ()
    placements = [first for first, *_ in run.gang.by_node().values()]
    answers = run.try_ask("commit", RankHost.node_report, {placement.rank: () for placement in placements})
    found = []
    for placement in placements:
        answer = answers.get(placement.rank)
        if isinstance(answer, WorkerFailure):
            run.problem(f"node artifacts of {placement.host}: nothing is known of them: {answer.message}")
        elif answer is not None:
            found.append(NodeReport(node_rank=placement.node_rank, host=placement.host, artifacts=answer))
    return tuple(found)


def fetch(run: Run) -> tuple[tuple[NodeFetch, ...], tuple[PlannedCapture, ...]]:
    """Bring partitions from the store to every node's disk, once for each node.

    Returns:
        What each node copied, and the capture plans of all manifests, each entry once.
    """
    nodes = run.gang.by_node().values()
    asked = {first.rank: (tuple(each.rank for each in (first, *rest)),) for first, *rest in nodes}
    with run.stage("fetch", tuple(asked)):
        answers = run.ask("fetch", RankHost.fetch, asked, may_lack_store=True)
    fetches = []
    captures: dict[PlannedCapture, None] = {}
    for placement, *_ in nodes:
        seeded = answers.get(placement.rank)
        if seeded is None:
            continue
        for fault in seeded.faults:
            run.problem(f"store: {fault}")
        for entry in (entry for partition in seeded.partitions for entry in partition.captures):
            captures[PlannedCapture(function=entry.function, signature=entry.signature)] = None
        fetches.append(
            NodeFetch(
                node_rank=placement.node_rank,
                host=placement.host,
                found=seeded.found,
                reason=seeded.reason,
                num_partitions=len(seeded.partitions),
                bytes_copied=seeded.bytes_copied,
                seconds=seeded.seconds,
            )
        )
    return tuple(fetches), tuple(captures)


def build_and_probe(run: Run) -> Probes:
    """Build the workload, and look every function up; nothing is compiled."""
    with run.stage("build"):
        run.ask_all("build", RankWorker.build)
    with run.stage("probe"):
        return run.ask_all("probe", RankWorker.probe)


def capture(run: Run, ledger: Ledger, planned: tuple[PlannedCapture, ...]) -> None:
    """Capture in step, also what earlier launches ``planned``; the ledger takes over the seconds.

    Where some ranks wait with a call for others to run, all capture when they are called.

    Raises:
        LaunchFailed: a rank failed, or ranks have calls of different number.
    """
    proposals = run.ask_all("capture", RankWorker.propose_captures, planned)
    numbers = {rank: sum(not item.planned for item in own) for rank, own in proposals.items()}
    if len(set(numbers.values())) == 1:
        _capture(run, ledger, proposals)
    elif len(set(Counter(rank for rank, _ in ledger).values())) == 1:
        failed = partial(WorkerFailure, stage="capture", kind=FailureKind.CAPTURE_MISMATCH)
        run.fail(
            "capture", [failed(rank=rank, message=f"{number} captures") for rank, number in numbers.items()]
        )


def _capture(run: Run, ledger: Ledger, proposals: Proposals) -> None:
    ranks = tuple(rank for rank, own in proposals.items() if own)
    if not ranks:
        return  # compiled kernels only, which are not captured
    with run.stage("capture", ranks):
        for step in order(proposals, ledger):
            arguments = {rank: (proposal,) for rank, proposal in step.items()}
            _note(run, ledger, "capture", run.ask("capture", RankHost.capture, arguments))


def order(proposals: Proposals, slots: Collection[tuple[int, str]]) -> tuple[Step, ...]:
    """All steps of a capture, the largest first; of equal ones, calls come first.

    Ranks propose as many calls each, of which the first of all make one step, and so on, as each rank's graph
    may wait for the others'. ``slots`` say which ranks have which functions.
    """
    ordered = [[item for item in own if not item.planned] for own in proposals.values()]
    calls = [
        {rank: item for rank, item in zip(proposals, items, strict=True) if item is not None}
        for items in zip_longest(*ordered)
    ]
    steps = [*calls, *_planned(proposals, slots)]
    return tuple(sorted(steps, key=lambda step: -max(item.num_elements for item in step.values())))


def _planned(proposals: Proposals, slots: Collection[tuple[int, str]]) -> list[Step]:
    """Planned captures on which all ranks with the function agree, whatever artifact each has of it."""
    owners = Counter(function for _, function in slots)
    steps: dict[tuple[str, str], Step] = {}
    for rank, own in proposals.items():
        for item in own:
            if item.planned:
                steps.setdefault((item.function, item.shapes), {})[rank] = item
    return [step for label, step in sorted(steps.items()) if len(step) >= owners[label[0]]]


def verify(run: Run) -> tuple[dict[int, Verification], Results]:
    """Compare the warm model's output with its reference.

    Returns:
        The comparison of each rank, and what it needed beyond the workload's calls.
    """
    with run.stage("verify"):
        answers = run.ask_all("verify", RankHost.verify)
        extra = {rank: results for rank, (_, results) in answers.items()}
        run.tell_results("verify", _pairs(extra))
        return {rank: check for rank, (check, _) in answers.items()}, extra


def run_script(run: Run) -> Results:
    """Run the script on every rank, from its beginning to its end; tell what it did also where it failed."""
    with run.stage("script"):
        answers = run.try_ask("script", RankHost.run_script, dict.fromkeys(run.ranks, ()))
        failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
        results = {
            rank: answer.results if isinstance(answer, WorkerFailure) else answer
            for rank, answer in answers.items()
        }
        run.tell_results("script", _pairs(results))
        if failures:
            run.fail("script", failures, silent=tuple(set(run.ranks) - set(answers)))
    return results


def run_calls(run: Run, probes: Probes, ledger: Ledger, *, no_compile: bool) -> Probes:
    """Run every call as the first request would, and again until a round needs nothing new.

    The ledger takes in what calls needed later, and the seconds.

    Returns:
        The probes, and those of what calls needed later.

    Raises:
        CompileForbidden: a miss is an error (``no_compile``), and a call needs it.
        LaunchFailed: a rank failed, or each of `MAX_ROUNDS` rounds needed something new.
    """
    num_calls = {rank: len(found) for rank, found in probes.items()}
    found = dict(probes)
    start = 1  # what the first call needs was just settled
    unsettled: Probes = {}
    for _ in range(MAX_ROUNDS):
        unsettled.clear()
        index = start
        while index <= max(num_calls.values()):
            index, needed, changed = _run_from(index, run, ledger, num_calls)
            unsettled |= changed | needed
            if needed:
                for rank, own in needed.items():  # a later probe stands for that of the same name
                    found[rank] = tuple({probe.function: probe for probe in (*found[rank], *own)}.values())
                ledger |= settle_all(run, needed, no_compile=no_compile)
                _capture_later(run, ledger, needed)
        if not unsettled:
            break
        start = 0
    else:
        run.fail("first_call", [_unsettled(rank, own[-1]) for rank, own in unsettled.items()])
    return found


def _run_from(
    index: int, run: Run, ledger: Ledger, num_calls: Mapping[int, int]
) -> tuple[int, Probes, Probes]:
    """Run calls from an index on, until one needs what is not loaded.

    Returns:
        The index to go on at; by rank, the probe of a call that needs something before it runs; by rank, the
        probes of calls that nothing loaded fits after the last one.
    """
    changed: Probes = {}
    with run.stage("first_call"):
        while index <= max(num_calls.values()):
            ranks = {rank: (index,) for rank, num in num_calls.items() if index <= num}
            answers = run.ask("first_call", RankHost.first_call, ranks)
            ran: Results = {}
            misses: Probes = {}
            for rank, answer in answers.items():
                ran[rank] = tuple(item for item in answer if isinstance(item, FunctionResult))
                if own := tuple(item for item in answer if isinstance(item, FunctionProbe)):
                    misses[rank] = own
            _note(run, ledger, "first_call", ran)
            changed |= {rank: own for rank, own in misses.items() if index == num_calls[rank]}
            index += 1
            if needed := {rank: own for rank, own in misses.items() if rank not in changed}:
                return index, needed, changed
    return index, {}, changed


def _capture_later(run: Run, ledger: Ledger, probes: Probes) -> None:
    """Capture what calls needed after others had run: in step if all ranks do, else when it is called."""
    names = {rank: ((), tuple(probe.function for probe in own)) for rank, own in probes.items()}
    if set(names) == set(run.ranks):
        proposals = run.ask("capture", RankWorker.propose_captures, names)
        if len({len(own) for own in proposals.values()}) == 1:
            _capture(run, ledger, proposals)


def _note(run: Run, ledger: Ledger, stage: str, answers: Results) -> None:
    """Keep how each function got its artifact, and take over what it has spent and captured by now."""
    for rank, result in _pairs(answers):
        ledger[rank, result.function] = replace(
            ledger[rank, result.function],
            seconds=result.seconds,
            num_captures=result.num_captures,
            pool_bytes=result.pool_bytes,
        )
    run.tell_results(stage, _pairs(answers))


def _unsettled(rank: int, probe: FunctionProbe) -> WorkerFailure:
    function = function_of_unit(probe.function)
    message = f"{function} needs another artifact after {MAX_ROUNDS} rounds of all calls: {probe.reason}"
    kind = FailureKind.DOES_NOT_SETTLE
    return WorkerFailure(rank=rank, stage="first_call", kind=kind, function=function, message=message)


def _pairs(results: Results) -> Iterator[tuple[int, FunctionResult]]:
    return ((rank, result) for rank, own in results.items() for result in own)
