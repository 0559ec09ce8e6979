"""Brings every function of every rank to an artifact, in rounds: plan, compile, audit, load or adopt.

The driver plans once for all ranks, from what the probe found; no rank decides anything, and none has taken
part in a collective before. A compile that fails stops nobody who does not need it. For an audit, ranks hand
over digests of their traces; only where two differ, the leader's trace goes to a rank that differs, which
says where. Where ranks have no store in common, artifacts go to other nodes through Ray's object store, once
each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from warmrank.cache_store.text import brief_names, grouped
from warmrank.orchestrator.config.models import positions
from warmrank.orchestrator.errors import (
    CompileForbidden,
    FailureKind,
    LaunchFailed,
    WorkerFailure,
    ranks_text,
)
from warmrank.orchestrator.gang.launcher import Shared
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport
from warmrank.orchestrator.launch.plan import (
    Action,
    Asked,
    Attempt,
    Cluster,
    Demand,
    Failed,
    PlanState,
    Slot,
    Tried,
    apply_round,
    auditing,
    begin,
    forbidden,
    is_hopeless,
    plan_round,
    rank_classes,
)
from warmrank.orchestrator.launch.run import Run
from warmrank.orchestrator.nodes import RankPlacement
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionProbe, FunctionResult, TraceResult

_MAX_EXPLAINED = 16
"""Different traces of one function that are explained; further ones are only said to differ."""

_MAX_NAMED = 8

Ledger = dict[Slot, FunctionResult]  # the outcome of every function on every rank


class Compiling(NamedTuple):
    """A compile of a rank that was lost, and where that was."""

    function: str
    placement: RankPlacement


def settle_all(
    run: Run,
    probes: Mapping[int, tuple[FunctionProbe, ...]],
    *,
    no_compile: bool,
    avoid: Iterable[Compiling] = (),
    may_wait: Collection[Slot] = (),
) -> Ledger:
    """Carry out rounds until no rank wants anything.

    What former attempts compiled when they were cut off (``avoid``) is rather compiled elsewhere now. What
    another call may have to run for first (``may_wait``) is left out of the ledger, and no error, if its
    function raises, or may not be compiled.

    Raises:
        CompileForbidden: compiling is forbidden and a plan needs it.
        LaunchFailed: a rank failed, or something did not compile; of lost leaders it says what they compiled.
    """
    config = run.config
    cluster = Cluster(
        nodes={placement.rank: placement.node_rank for placement in run.gang.placements},
        max_rounds=config.max_rounds,
        cpus_per_rank=config.ray.num_cpus_per_rank,
        positions=positions(config),
        audit=config.audit,
    )
    state = begin(probes, cluster, avoided=_tried(avoid, run.gang.placements))
    asking = state.demands
    ledger: Ledger = {}
    while state.demands:
        actions = plan_round(state)
        if no_compile and (missed := forbidden(state, actions)):
            slots = {demand.slot for demand in missed}
            if not slots <= {*may_wait}:
                raise CompileForbidden((demand.function, demand.reason, demand.rank) for demand in missed)
            state = replace(state, demands=tuple(each for each in state.demands if each.slot not in slots))
            continue
        if planned := rank_classes(state, actions):
            run.tell(events.Planned(classes=planned))
        attempts = _Round(run, state, actions).carry_out(ledger)
        num_failed = len(state.failed)
        state = apply_round(state, actions, attempts)
        for text in _retries(state, state.failed[num_failed:], run.gang.placements):
            run.problem(text)
    _release(run, state, _suspects(run, state, asking), ledger)
    raised = {failed.class_key for failed in state.failed if failed.is_final}
    lost = [each for each in state.lost if each.slot not in may_wait or each.class_key(cluster) not in raised]
    if lost:
        run.fail("compile", _failures(state, lost, run.gang.placements))
    return ledger


def _tried(former: Iterable[Compiling], placements: Iterable[RankPlacement]) -> Iterator[Tried]:
    """Places in this attempt where former ones were cut off: by node, for a rank may be elsewhere by now.

    A node whose Ray was started anew has another id: it is known by its host name.
    """
    for function, lost in former:
        nodes = {each.node_rank for each in placements if each.node_id == lost.node_id}
        nodes = nodes or {each.node_rank for each in placements if each.host == lost.host}
        yield from (Tried(function, lost.rank, node) for node in nodes)


def _retries(
    state: PlanState, failed: Iterable[Failed], placements: tuple[RankPlacement, ...]
) -> Iterator[str]:
    """Lines on compiles that ``failed`` just now and are tried again; equal causes grouped."""
    classes = grouped((demand.class_key(state.cluster), demand) for demand in state.demands)
    tried = grouped((one.class_key, one) for one in state.failed)
    ranks = grouped(
        ((one.class_key[0], one.reason), one.rank)
        for one in failed
        if not is_hopeless(classes[one.class_key], tried[one.class_key])
    )
    for (function, reason), found in ranks.items():
        brief = reason.partition("\n")[0]
        yield f"{function} did not compile on {_where(found, placements)}, and is tried once more: {brief}"


def _failures(
    state: PlanState, given_up: Iterable[Demand], placements: tuple[RankPlacement, ...]
) -> list[WorkerFailure]:
    """Reasons for giving up: functions, leaders, nodes and causes."""
    wanted = grouped((demand.function, demand.rank) for demand in given_up)
    lost = {demand.class_key(state.cluster) for demand in given_up}
    tried = grouped(
        ((failed.class_key[0], failed.error, failed.reason, failed.comes_again), failed.rank)
        for failed in state.failed
        if failed.class_key in lost
    )
    found = []
    for (function, error, reason, comes_again), ranks in tried.items():
        remedy = (
            f"see the logs of {_where(ranks, placements)}, who compiled it for "
            f"{ranks_text(wanted[function])}; all else is kept in the ranks' cache directories, so that the "
            "next launch compiles only what failed"
        )
        if comes_again:
            remedy = f"correct the function; {remedy}"
        kind, message = error or FailureKind.COMPILE_FAILED, reason.removeprefix(f"{error}: ")
        found += [
            WorkerFailure(
                rank=rank, stage="compile", kind=kind, message=message, function=function, remedy=remedy
            )
            for rank in dict.fromkeys(ranks)
        ]
    return found


def _where(ranks: Iterable[int], placements: tuple[RankPlacement, ...]) -> str:
    """Ranks with their nodes: ``rank 0 on node 0 (a), rank 4 on node 1 (b)``."""
    known = {placement.rank: placement for placement in placements}
    named = [f"rank {rank} on node {known[rank].node_rank} ({known[rank].host})" for rank in ranks]
    return brief_names(named, max_names=_MAX_NAMED)


def _suspects(run: Run, state: PlanState, demands: Iterable[Demand]) -> set[Asked]:
    """Requests that audits found at fault, now or in an earlier launch.

    No rank audits what it holds. What an earlier launch left unreleased is at fault if ranks hold artifacts
    of different traces for one request, and no condition tells the ranks apart.
    """
    suspects = {*state.suspects}
    left = {(offer.asked, offer.digest): offer for offer in state.offers if offer.trace and not offer.is_new}
    for (asked, digest), offer in left.items():
        others = {
            demand.rank: ({demand.function: digest},)
            for demand in demands
            if demand.asked == asked and left.get((asked, demand.held), offer).trace != offer.trace
        }
        if asked in suspects or not others:
            continue
        answers = run.ask("load", RankWorker.consider, others, is_work=False, may_lack_store=True)
        if alike := [rank for rank in others if rank not in answers or answers[rank][0].ok]:
            suspects.add(asked)
            run.problem(
                f"audit: of an earlier launch, {asked[0]} is traced otherwise on {ranks_text(alike)} than on "
                f"rank {offer.from_rank}, and no condition says so; it is not published, and launches on an "
                "empty cache find no artifact of the function"
            )
    return suspects


def _release(run: Run, state: PlanState, suspects: Collection[Asked], ledger: Ledger) -> None:
    """Let other partitions have what was compiled now, or left by a launch that was cut off; no suspects."""
    digests = {
        (offer.asked[0], offer.digest)
        for offer in state.offers
        if offer.trace and offer.asked not in suspects
    }
    released: dict[int, dict[str, str]] = {}
    for (rank, function), result in ledger.items():
        if (function, result.digest) in digests:
            released.setdefault(rank, {})[function] = result.digest
    if released:
        arguments = {rank: (found,) for rank, found in released.items()}
        run.ask("load", RankWorker.release, arguments, is_work=False)


class _Round:
    """One round: leaders ``made`` artifacts, auditors ``traced`` now; ``traces`` are now's and earlier ones'.

    ``fresh`` digests were compiled by this launch; what a cache already held was audited when it was made.
    ``makers``: for every slot that is to adopt what this launch made, who made it, and its trace's digest.
    ``differences`` are the first ones of slots that trace otherwise than what they were to adopt. These, and
    those that wait for them, are ``unproven``: they must not adopt it.
    """

    def __init__(self, run: Run, state: PlanState, actions: Mapping[Slot, Action]) -> None:
        self._run, self._state, self._actions = run, state, actions
        self._nodes = state.cluster.nodes
        self.made: Ledger = {}
        self.traced: dict[Slot, TraceResult] = {}

    def carry_out(self, ledger: Ledger) -> dict[Slot, Attempt]:
        """Do what the plan says; what is settled goes into the ledger."""
        functions = grouped(slot for slot, action in self._actions.items() if action.kind == "compile")
        traces = auditing(self._state, self._actions)
        if busy := tuple(sorted(functions.keys() | traces.keys())):
            with self._run.stage("compile", busy):
                self._compile({rank: (functions.get(rank, []), traces.get(rank, [])) for rank in busy})
                self._compare()
        else:
            self._compare()
        if not self._run.shares_store:
            self._hand_over()
        results = self.made | self._load()
        self._tell(results)
        ledger |= {
            slot: result for slot, result in results.items() if result.ok and slot not in self.unproven
        }
        return {
            slot: self._attempt(slot, action, results.get(slot))
            for slot, action in self._actions.items()
            if action.kind != "give up"
        }

    def _compile(self, asked: Mapping[int, tuple[list[str], list[str]]]) -> None:
        """Leaders compile and auditors trace, side by side; each rank in the order of the plan.

        A rank that fails as a whole ends the attempt; the error notes what lost leaders compiled.
        """
        run = self._run
        arguments = {rank: tuple(map(tuple, names)) for rank, names in asked.items()}
        answers = run.try_ask("compile", RankHost.compile, arguments)
        failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
        if failures:
            try:
                run.fail("compile", failures, silent=tuple(rank for rank in asked if rank not in answers))
            except LaunchFailed as error:
                placements = {placement.rank: placement for placement in run.gang.placements}
                # Who dies meanwhile need not be a leader, and an auditor is none to avoid.
                error.compiling = tuple(
                    Compiling(name, placements[failure.rank])
                    for failure in failures
                    for name in asked.get(failure.rank, ((), ()))[0]
                )
                raise
        refusals = {demand.slot: demand.reason for demand in self._state.demands if demand.refused}
        for rank, answer in answers.items():
            for result in answer if not isinstance(answer, WorkerFailure) else ():
                slot = rank, result.function
                if not isinstance(result, FunctionResult):
                    self.traced[slot] = result
                elif result.ok and slot in refusals:  # the rank itself only knows that it holds nothing
                    self.made[slot] = replace(result, reason=refusals[slot])
                else:
                    self.made[slot] = result
        run.tell_results("compile", ((rank, result) for (rank, _), result in self.made.items()))

    def _compare(self) -> None:
        """Compare every slot's own trace with what it is about to adopt."""
        self.traces = {demand.slot: demand.trace for demand in self._state.demands if demand.trace}
        self.traces |= {slot: result.trace for slot, result in self.traced.items() if result.trace}
        self.fresh = {
            result.digest for result in self.made.values() if result.ok and result.outcome == "compiled"
        }
        self.fresh |= {offer.digest for offer in self._state.offers if offer.trace}
        self.makers = dict(self._find_makers())
        differing = [
            slot
            for slot, (_, wanted) in self.makers.items()
            if self.traces.get(slot, "" if slot in self.traced else wanted) != wanted
        ]
        waiting = {
            slot
            for slot, (_, wanted) in self.makers.items()
            if slot not in self.traces
            and (auditor := self._actions[slot].auditor) is not None
            and self.traces.get((auditor, slot[1])) != wanted
        }
        self.unproven = frozenset((*differing, *waiting))
        self.differences = self._explain(differing)

    def _find_makers(self) -> Iterator[tuple[Slot, tuple[int, str]]]:
        offers = {(offer.asked, offer.digest): offer for offer in self._state.offers if offer.trace}
        for demand in self._state.demands:
            action = self._actions[demand.slot]
            if action.kind != "adopt":
                continue
            if action.leader is not None:
                result = self.made[action.leader, demand.function]
                if result.ok and result.trace and result.digest in self.fresh:
                    yield demand.slot, (action.leader, result.trace)
            else:
                offer = offers.get((demand.asked, action.digest))
                if offer is not None and offer.from_rank is not None:
                    yield demand.slot, (offer.from_rank, offer.trace)

    def _explain(self, differing: Iterable[Slot]) -> dict[Slot, str]:
        """The first difference of each slot, in words; equal ones are asked for once."""
        kinds: dict[tuple[int, str], dict[str, list[Slot]]] = {}
        found: dict[Slot, str] = {}
        for slot in differing:
            if own := self.traces.get(slot, ""):
                kinds.setdefault((self.makers[slot][0], slot[1]), {}).setdefault(own, []).append(slot)
            else:
                found[slot] = f"it does not trace there: {self.traced[slot].reason}"
        for (maker, function), by_trace in kinds.items():
            text = self._run.ask("compile", RankWorker.trace, {maker: (function,)}, is_work=False)[maker]
            first = [slots[0] for slots in by_trace.values()][:_MAX_EXPLAINED]
            asked = {rank: (function, text) for rank, _ in first}
            words = self._run.ask("compile", RankWorker.difference, asked, is_work=False)
            for slots in by_trace.values():
                said = words.get(slots[0][0], "") or "its trace differs as well"
                found |= dict.fromkeys(slots, said)
        return found

    def _hand_over(self) -> None:
        """Bring what ranks are about to be offered to the nodes that lack it, once each."""
        holders = grouped(
            [((function, result.digest), rank) for (rank, function), result in self.made.items() if result.ok]
            + [
                ((demand.function, digest), demand.rank)
                for demand in self._state.demands
                for digest in (demand.held, demand.fits)
                if digest
            ]
        )
        nodes = {key: {self._nodes[rank] for rank in ranks} for key, ranks in holders.items()}
        takers: dict[tuple[str, str], list[int]] = {}
        for (rank, function), action in self._actions.items():
            key, node = (function, self._offered(function, action)), self._nodes[rank]
            if action.kind == "adopt" and key in holders and node not in nodes[key]:
                nodes[key].add(node)
                takers.setdefault(key, []).append(rank)
        asked: dict[int, dict[str, str]] = {}
        for function, digest in takers:
            asked.setdefault(holders[function, digest][0], {})[function] = digest
        if not asked:
            return
        arguments = {rank: (found,) for rank, found in asked.items()}
        answers = self._run.ask("load", RankWorker.hand_out, arguments, is_work=False)
        given: dict[str, dict[int, tuple[str, Shared]]] = {}
        for (function, digest), ranks in takers.items():
            if (handed := answers[holders[function, digest][0]].get(function)) is not None:
                given.setdefault(function, {}).update(dict.fromkeys(ranks, (function, Shared(handed))))
        for by_rank in given.values():
            self._run.ask("load", RankHost.take_in, by_rank, is_work=False)

    def _load(self) -> Ledger:
        """All others load what they hold or adopt what is offered; what is unproven is only considered."""
        loads: dict[int, list[str]] = {}
        offers: dict[int, dict[str, str]] = {}
        considered: dict[int, dict[str, str]] = {}
        for slot, action in self._actions.items():
            rank, function = slot
            if action.kind == "load":
                loads.setdefault(rank, []).append(function)
            elif offered := self._offered(function, action):
                kind = considered if slot in self.unproven else offers
                kind.setdefault(rank, {})[function] = offered
        ranks = tuple(sorted(loads.keys() | offers.keys() | considered.keys()))
        if not ranks:
            return {}
        with self._run.stage("load", ranks):
            arguments = {
                rank: (
                    tuple(loads.get(rank, ())),
                    offers.get(rank, {}),
                    considered.get(rank, {}),
                    tuple(function for function in offers.get(rank, {}) if (rank, function) in self.makers),
                )
                for rank in ranks
            }
            answers = self._run.ask("load", RankHost.settle, arguments)
            results = {(rank, result.function): result for rank, found in answers.items() for result in found}
            self._run.tell_results(
                "load",
                ((slot[0], result) for slot, result in results.items() if slot not in self.unproven),
            )
        return results

    def _offered(self, function: str, action: Action) -> str:
        """Digest of the artifact that an action hands to a rank; empty where it hands it none."""
        if action.kind != "adopt" or action.leader is None:
            return action.digest
        result = self.made[action.leader, function]
        return result.digest if result.ok else ""

    def _tell(self, results: Mapping[Slot, FunctionResult]) -> None:
        """Tell the listener what audits showed; a difference that no condition shows is a problem as well."""
        alike: dict[tuple[str, int, AuditOutcome, str], list[Slot]] = {}
        for slot, (maker, _) in self.makers.items():
            difference = self.differences.get(slot, "")
            if not difference and slot not in self.traces:
                continue
            outcome: AuditOutcome = "equal"
            if difference:  # what keeps the rank from an artifact of another trace, beside the audit
                result = results[slot]
                outcome = "differs" if result.ok else "guarded" if result.guard_failed else "apart"
            alike.setdefault((slot[1], maker, outcome, difference), []).append(slot)
        for (function, maker, outcome, difference), slots in alike.items():
            traced = [self.traced[slot] for slot in slots if slot in self.traced]
            ranks = tuple(sorted(rank for rank, _ in slots))
            audit = AuditReport(
                round=self._state.round,
                function=function,
                leader=maker,
                ranks=ranks,
                outcome=outcome,
                difference=difference,
                seconds=sum(result.seconds for result in traced),
                cpu_s=sum(result.cpu_s for result in traced),
            )
            self._run.tell(events.Audited(audit=audit))
            if outcome == "differs":
                self._run.problem(
                    f"audit: {function} is traced otherwise on {ranks_text(ranks)} than on rank {maker}, and "
                    f"no condition says so; what rank {maker} compiled is not used there, and later launches "
                    f"find no artifact of the function: {difference}"
                )

    def _attempt(self, slot: Slot, action: Action, result: FunctionResult | None) -> Attempt:
        own = self.traces.get(slot, "")
        if result is None:
            return Attempt(ok=False, digest="", reason="its leader could not compile it", trace=own)
        is_compile, is_unproven = action.kind == "compile", slot in self.unproven
        return Attempt(
            ok=result.ok and not is_unproven,
            digest=result.digest if is_compile else self._offered(slot[1], action),
            reason=result.reason,
            error=result.error,
            out_of_reach=not (is_compile or result.ok or result.guard_failed),
            takes=result.ok and is_unproven,
            trace=own if not is_compile else result.trace if result.digest in self.fresh else "",
            difference=self.differences.get(slot, ""),
        )
