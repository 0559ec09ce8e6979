"""The stages of a launch around the plan: each asks every rank the same, in step.

Calls run in step until a whole round of them needs nothing new, because a call may change what the conditions
of the next one hang on (a prefill makes the KV cache). Ranks look at a call before any of them runs it, so
that none compiles while the others wait for it in a collective. They capture together, for graphs hold
collectives, the largest first, so that smaller ones fit into the pool; what comes from a plan is captured by
all ranks that have the artifact, or by none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from warmrank.cache_store.keys import changed_components
from warmrank.cache_store.records.manifest import environments_of
from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.config.models import packed_ranks
from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.gang.rank_host import Opened, RankInit
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.launch.report import NodeFetch, NodeReport
from warmrank.orchestrator.launch.rounds import Ledger, settle_all
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.seats import straddle_text, straddling_groups
from warmrank.worker.results import (
    CaptureProposal,
    FunctionProbe,
    FunctionResult,
    RankPlace,
    Verification,
    function_of_unit,
)

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import CaptureEntry
    from warmrank.cache_store.seed import SeedReport
    from warmrank.orchestrator.store.stores import Access

Proposals = Mapping[int, tuple[CaptureProposal, ...]]
"""What each rank proposes."""

Step = dict[int, CaptureProposal]
"""What each rank that takes part in a step captures."""


def num_calls(proposals: tuple[CaptureProposal, ...]) -> int:
    """How many of a rank's proposals are calls of the workload."""
    return sum(not proposal.planned for proposal in proposals)


def order(proposals: Proposals, digests: Mapping[tuple[int, str], str]) -> tuple[Step, ...]:
    """All steps, the largest first.

    Args:
        proposals: of all ranks, each with as many calls as the others.
        digests: of the artifact that a rank has of a function.
    """
    steps = [*_calls(proposals), *_planned(proposals, digests)]
    return tuple(sorted(steps, key=_size, reverse=True))  # stable: of equal ones, calls come first


def _size(step: Step) -> int:
    return max(proposal.num_elements for proposal in step.values())


def _calls(proposals: Proposals) -> list[Step]:
    """Every rank's calls side by side, from its largest to its smallest."""
    ordered = [
        sorted((item for item in own if not item.planned), key=lambda item: -item.num_elements)
        for own in proposals.values()
    ]
    return [
        {rank: item for rank, item in zip(proposals, items, strict=True) if item is not None}
        for items in zip_longest(*ordered)
    ]


def _planned(proposals: Proposals, digests: Mapping[tuple[int, str], str]) -> list[Step]:
    """Planned captures on which all ranks with the artifact agree; one step for equal shapes."""
    owners = Counter((function, digest) for (_, function), digest in digests.items())
    proposers: Counter[tuple[str, str, str]] = Counter()
    for rank, own in proposals.items():
        signatures = dict.fromkeys((item.function, item.signature) for item in own if item.planned)
        for function, signature in signatures:
            proposers[function, signature, digests.get((rank, function), "")] += 1
    steps: dict[tuple[str, str], Step] = {}
    for rank, own in proposals.items():
        for item in own:
            digest = digests.get((rank, item.function), "")
            # Counted, not compared rank by rank, which would be quadratic in the number of ranks.
            agreed = proposers[item.function, item.signature, digest] >= owners[item.function, digest]
            if item.planned and agreed:
                steps.setdefault((item.function, item.shapes), {})[rank] = item
    return [steps[label] for label in sorted(steps)]


Results = dict[int, tuple[FunctionResult, ...]]
"""What became of functions, by rank."""


def open_store(stages: Stages) -> Access | None:
    """Open the store in the driver; one that is away is a problem, not an error, unless it is required.

    Raises:
        cache_store.errors.StoreError: what is there cannot be used, or a required place is away.
    """
    from warmrank.orchestrator.store.stores import access

    if stages.config.store is None:
        return None
    found = access(stages.config.store)
    if found.store is None:
        stages.problem(f"launched without the store: {found.tiers[-1].reason}")
    else:
        for problem in found.store.problems:
            stages.problem(f"store: {problem}")
    return found


def start(stages: Stages, access: Access | None, *, no_compile: bool) -> tuple[RankPlace, ...]:
    """Start all ranks and let them meet."""
    config = stages.config
    is_away = access is not None and access.for_ranks is None
    store_away = access.tiers[-1].reason if access is not None and is_away else ""
    if access is not None:
        config = config.model_copy(update={"store": access.for_ranks or access.config})
    stages.shares_store = access is not None and not is_away
    with stages.stage("start"):
        gang = stages.start()
        if straddling := straddling_groups(gang.seats, packed_ranks(config)):
            stages.problem(straddle_text(config.ray.pack, straddling, gang.seats))
        inits = {
            seat.rank: (
                RankInit(
                    config=config,
                    seat=seat,
                    master_addr=gang.master_addr,
                    master_port=gang.master_port,
                    no_compile=no_compile,
                    store_away=store_away,
                ),
            )
            for seat in gang.seats
        }
        opened: dict[int, Opened] = stages.ask("start", "open", inits)
    without: dict[str, list[int]] = {}
    for rank, answer in opened.items():
        if answer.problem:
            without.setdefault(answer.problem, []).append(rank)
    for problem, ranks in without.items():
        go = "goes" if len(ranks) == 1 else "go"
        stages.problem(f"{ranks_text(ranks)} {go} on without the store: {problem}")
    places = tuple(answer.place for answer in opened.values())
    _compare_environments(stages, places)
    return places


def node_artifacts(stages: Stages) -> tuple[NodeReport, ...]:
    """What became of the node artifacts of every node that has node caches, in order.

    The launch is committed by now, so a rank that cannot say it any more is a problem, not the end of all.
    """
    from warmrank.orchestrator.config.reading import declared_caches

    if not declared_caches(stages.config):
        return ()
    seats = stages.gang.first_of_each_node()
    answers = stages.try_ask("commit", "node_report", {seat.rank: () for seat in seats})
    found = []
    for seat in seats:
        answer = answers.get(seat.rank)
        if isinstance(answer, WorkerFailure):
            stages.problem(f"node artifacts of {seat.host}: nothing is known of them: {answer.message}")
        elif answer is not None:
            found.append(NodeReport(node_rank=seat.node_rank, host=seat.host, artifacts=answer))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What came from the store.

    Attributes:
        nodes: what each node copied.
        captures: the capture plans of all manifests, each entry once.
    """

    nodes: tuple[NodeFetch, ...] = ()
    captures: tuple[CaptureEntry, ...] = ()


def fetch(stages: Stages) -> Fetched:
    """Bring partitions from the store to every node's disk, once for each node."""
    key = launch_key(stages.config)
    seats = stages.gang.first_of_each_node()
    ranks = {seat.rank: tuple(range(seat.rank, seat.rank + seat.local_world_size)) for seat in seats}
    with stages.stage("fetch", tuple(ranks)):
        answers = stages.ask_store(
            "fetch", "fetch", {rank: (key, members) for rank, members in ranks.items()}
        )
        stages.agree_on_silence("fetch", ranks)
    fetches = []
    captures: dict[CaptureEntry, None] = {}
    for seat in seats:
        seeded: SeedReport | None = answers.get(seat.rank)
        if seeded is None:
            continue
        for fault in seeded.faults:
            stages.problem(f"store: {fault}")
        captures |= dict.fromkeys(entry for partition in seeded.partitions for entry in partition.captures)
        fetches.append(
            NodeFetch(
                node_rank=seat.node_rank,
                host=seat.host,
                found=seeded.found,
                reason=seeded.reason,
                num_partitions=len(seeded.partitions),
                bytes_copied=sum(partition.bytes_copied for partition in seeded.partitions),
                seconds=seeded.seconds,
            )
        )
    return Fetched(nodes=tuple(fetches), captures=tuple(captures))


def build(stages: Stages) -> None:
    """Build the workload."""
    with stages.stage("build"):
        stages.ask_all("build", "build")


def probe(stages: Stages) -> dict[int, tuple[FunctionProbe, ...]]:
    """Look every function up; nothing is compiled."""
    with stages.stage("probe"):
        return stages.ask_all("probe", "probe")


def capture(stages: Stages, ledger: Ledger, planned: tuple[CaptureEntry, ...]) -> None:
    """Capture in step: a step begins when all ranks are through the one before.

    Where some ranks wait with a call for others to run, all capture when they are called.

    Args:
        stages: of the launch.
        ledger: what became of every function; takes over the seconds.
        planned: what earlier launches captured.

    Raises:
        LaunchFailed: a rank failed, or ranks have calls of different number.
    """
    proposals: Proposals = stages.ask_all("capture", "propose_captures", planned)
    numbers = {rank: num_calls(own) for rank, own in proposals.items()}
    if len(set(numbers.values())) > 1:
        if len(set(Counter(rank for rank, _ in ledger).values())) > 1:
            return
        stages.fail("capture", [_odd_number(rank, number) for rank, number in numbers.items()])
    if stages.config.device == "npu" and any(proposals.values()):
        _count_streams(stages)
    _capture(stages, ledger, proposals)


def capture_later(stages: Stages, ledger: Ledger, probes: Mapping[int, Sequence[FunctionProbe]]) -> None:
    """Capture what calls needed after others had run: in step if all ranks do, else when it is called."""
    names = {rank: ((), tuple(probe.function for probe in own)) for rank, own in probes.items()}
    if set(names) == set(stages.ranks):
        proposals: Proposals = stages.ask("capture", "propose_captures", names)
        if len({len(own) for own in proposals.values()}) == 1:
            _capture(stages, ledger, proposals)


def _capture(stages: Stages, ledger: Ledger, proposals: Proposals) -> None:
    ranks = tuple(rank for rank, own in proposals.items() if own)
    if not ranks:
        return  # compiled kernels only, which are not captured
    digests = {slot: result.digest for slot, result in ledger.items()}
    with stages.stage("capture", ranks):
        for step in order(proposals, digests):
            arguments = {rank: (proposal,) for rank, proposal in step.items()}
            note(stages, ledger, "capture", stages.ask("capture", "capture", arguments))


def _count_streams(stages: Stages) -> None:
    """Say before the first capture what the NPUs have too few streams for."""
    said: dict[str, list[int]] = {}
    for rank, text in stages.ask_all("capture", "stream_problem").items():
        said.setdefault(text, []).append(rank)
    for text, ranks in said.items():
        if text:
            stages.problem(f"{ranks_text(ranks)}: {text}")


def verify(stages: Stages) -> tuple[dict[int, Verification], Results]:
    """Compare the warm model's output with its reference.

    Returns:
        The comparison of each rank, and what it needed beyond the workload's calls.
    """
    with stages.stage("verify"):
        checks = stages.ask_all("verify", "verify")
        extra: Results = stages.ask("verify", "extra", dict.fromkeys(stages.ranks, ()), is_work=False)
        stages.tell("verify", extra)
        return checks, extra


def run_script(stages: Stages) -> Results:
    """Run the script on every rank, from its beginning to its end."""
    with stages.stage("script"):
        results: Results = stages.ask_all("script", "run_script")
        stages.tell("script", results)
    return results


def note(stages: Stages, ledger: Ledger, stage: str, answers: Results) -> None:
    """Keep how each function got its artifact, and take over what it has spent and captured by now."""
    for rank, results in answers.items():
        for result in results:
            known = ledger[rank, result.function]
            ledger[rank, result.function] = replace(
                known,
                seconds=result.seconds,
                num_captures=result.num_captures,
                pool_bytes=result.pool_bytes,
            )
    stages.tell(stage, answers)


def _odd_number(rank: int, number: int) -> WorkerFailure:
    return WorkerFailure(
        rank=rank,
        stage="capture",
        kind="CaptureMismatch",
        message=f"{number} captures",
    )


def _compare_environments(stages: Stages, places: tuple[RankPlace, ...]) -> None:
    """Ranks in different environments share nothing, which is worth knowing."""
    found = environments_of({place.rank: place.environment for place in places})
    for other in found.others:
        changes = "; ".join(map(str, changed_components(found.environment, other.environment)))
        stages.problem(f"{ranks_text(other.ranks)}: another environment than rank 0: {changes}")


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
                capture_later(stages, ledger, needed)
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
            note(stages, ledger, "first_call", ran)
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
    )
