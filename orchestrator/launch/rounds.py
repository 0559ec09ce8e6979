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

from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.config.models import positions
from warmrank.orchestrator.errors import CompileForbidden, LaunchFailed, ranks_text
from warmrank.orchestrator.gang.launcher import Shared
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.orchestrator.launch.events import AuditOutcome, AuditReport
from warmrank.orchestrator.launch.failures import Compiling, avoided, failures_of, retries
from warmrank.orchestrator.launch.plan import auditing, forbidden, lanes_of, plan_round, rank_classes
from warmrank.orchestrator.launch.plan_state import (
    Action,
    Adopt,
    Attempt,
    AwaitLeader,
    Compile,
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
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionProbe, FunctionResult, TraceResult

_MAX_EXPLAINED = 16
"""Different traces of one function that are explained; further ones are only said to differ."""

Ledger = dict[Slot, FunctionResult]  # the outcome of every function on every rank


def settle_all(
    stages: Stages,
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
    seats = {seat.rank: seat for seat in stages.gang.seats}
    nodes = {rank: seat.node_rank for rank, seat in seats.items()}
    lanes = lanes_of(nodes.values(), stages.config.ray.num_cpus_per_rank)
    state = begin(probes, avoided=avoided(avoid, seats), audit=stages.config.audit)
    places = positions(stages.config)
    ledger: Ledger = {}
    while state.demands:
        actions = plan_round(
            state, max_rounds=stages.config.max_rounds, nodes=nodes, lanes=lanes, positions=places
        )
        if no_compile and (misses := forbidden(state, actions)):
            if any((rank, miss.function) not in may_wait for miss in misses for rank in miss.ranks):
                raise CompileForbidden(misses)
            state = without(state, misses)
            continue
        if planned := rank_classes(state, actions):
            stages.planned(planned)
        attempts = _Round(stages, state, actions, nodes).carry_out(ledger)
        before = len(state.failed)
        state = apply_round(state, actions, attempts, nodes=nodes)
        for text in retries(state.failed[before:], state, seats):
            stages.problem(text)
    _release(stages, state, ledger)
    if lost := given_up(state, may_wait):
        stages.fail("compile", failures_of(replace(state, lost=lost), seats))
    return ledger


def _release(stages: Stages, state: PlanState, ledger: Ledger) -> None:
    """Let other partitions have what this launch compiled or audited, unless it depends on a rank."""
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
        arguments = {rank: (found,) for rank, found in released.items()}
        stages.ask("load", RankWorker.release, arguments, is_work=False)


class _Round:
    """One round: leaders ``made`` artifacts, auditors ``traced`` now; ``traces`` are now's and earlier ones'.

    ``fresh`` digests were compiled by this launch; what a cache already held was audited when it was made.
    ``makers``: for every slot that is to adopt what this launch made, who made it, and its trace's digest.
    ``differences`` are the first ones of slots that trace otherwise than what they were to adopt. These, and
    those that wait for them, are ``unproven``: they must not adopt it.
    """

    def __init__(
        self, stages: Stages, state: PlanState, actions: Mapping[Slot, Action], nodes: Mapping[int, int]
    ) -> None:
        self._stages, self._state, self._actions, self._nodes = stages, state, actions, nodes
        self.made: Ledger = {}
        self.traced: dict[Slot, TraceResult] = {}

    def carry_out(self, ledger: Ledger) -> dict[Slot, Attempt]:
        """Do what the plan says; what is settled goes into the ledger."""
        self._compile()
        if not self._stages.shares_store:
            self._hand_over()
        results = self.made | self._load()
        self._tell(results)
        ledger |= {
            slot: result for slot, result in results.items() if result.ok and slot not in self.unproven
        }
        return {
            slot: self._attempt(slot, action, results.get(slot))
            for slot, action in self._actions.items()
            if not isinstance(action, GiveUp)
        }

    def _compile(self) -> None:
        """Leaders compile and auditors trace, side by side; each rank in the order of the plan."""
        functions: dict[int, list[str]] = {}
        for (rank, function), action in self._actions.items():
            if isinstance(action, Compile):
                functions.setdefault(rank, []).append(function)
        traces = auditing(self._state, self._actions)
        busy = tuple(sorted(functions.keys() | traces.keys()))
        if not busy:
            self._compare()
            return
        stages = self._stages
        with stages.stage("compile", busy):
            arguments = {rank: (tuple(functions.get(rank, ())), tuple(traces.get(rank, ()))) for rank in busy}
            answers = stages.try_ask("compile", RankHost.compile, arguments)
            failures = [answer for answer in answers.values() if isinstance(answer, WorkerFailure)]
            if failures:
                self._cut_off(functions, failures, tuple(rank for rank in busy if rank not in answers))
            stages.agree_on_silence("compile", functions)
            for rank, answer in answers.items():
                for result in answer if not isinstance(answer, WorkerFailure) else ():
                    if isinstance(result, FunctionResult):
                        self.made[rank, result.function] = result
                    else:
                        self.traced[rank, result.function] = result
            stages.tell("compile", _by_rank(self.made))
            self._compare()

    def _cut_off(
        self,
        functions: Mapping[int, Iterable[str]],
        failures: list[WorkerFailure],
        silent: tuple[int, ...],
    ) -> None:
        """End the attempt for ranks that failed as a whole, and note what lost leaders compiled."""
        asked = {demand.slot: demand.request_key for demand in self._state.demands}
        # Who dies meanwhile need not be a leader, and an auditor is none to avoid.
        lost = [(failure.rank, name) for failure in failures for name in functions.get(failure.rank, ())]
        try:
            self._stages.fail("compile", failures, silent=silent)
        except LaunchFailed as error:
            seats = {seat.rank: seat for seat in self._stages.gang.seats}
            error.compiling = tuple(Compiling(name, asked[rank, name], seats[rank]) for rank, name in lost)
            raise

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
            and isinstance(action := self._actions[slot], Adopt | AwaitLeader)
            and any(self.traces.get((rank, slot[1])) != wanted for rank in action.auditors)
        }
        self.unproven = frozenset((*differing, *waiting))
        self.differences = self._explain(differing)

    def _find_makers(self) -> Iterator[tuple[Slot, tuple[int, str]]]:
        offers = {
            (offer.function, offer.request_key, offer.digest): offer
            for offer in self._state.offers
            if offer.trace
        }
        for demand in self._state.demands:
            action = self._actions[demand.slot]
            if isinstance(action, AwaitLeader):
                result = self.made[action.leader, demand.function]
                if result.ok and result.trace and result.digest in self.fresh:
                    yield demand.slot, (action.leader, result.trace)
            elif isinstance(action, Adopt):
                offer = offers.get((*demand.asked, action.digest))
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
            text = self._stages.ask("compile", RankWorker.trace, {maker: (function,)}, is_work=False)[maker]
            first = [slots[0] for slots in by_trace.values()][:_MAX_EXPLAINED]
            asked = {rank: (function, text) for rank, _ in first}
            words = self._stages.ask("compile", RankWorker.difference, asked, is_work=False)
            for slots in by_trace.values():
                said = words.get(slots[0][0], "") or "its trace differs as well"
                found |= dict.fromkeys(slots, said)
        return found

    def _wanted(self) -> dict[tuple[int, str, str], dict[int, int]]:
        """By rank that has it, function and digest: for each node that lacks it the rank that takes it in."""
        holders = {
            (function, result.digest): [rank] for (rank, function), result in self.made.items() if result.ok
        }
        for demand in self._state.demands:
            for digest in filter(None, (demand.held, demand.fits)):
                holders.setdefault((demand.function, digest), []).append(demand.rank)
        having = {key: {self._nodes[rank] for rank in ranks} for key, ranks in holders.items()}
        wanted: dict[tuple[int, str, str], dict[int, int]] = {}
        for (rank, function), action in self._actions.items():
            if isinstance(action, Adopt | AwaitLeader):
                offered = action if isinstance(action, Adopt) else self.made[action.leader, function]
                key = function, offered.digest
                if key in holders and self._nodes[rank] not in having[key]:
                    wanted.setdefault((holders[key][0], *key), {}).setdefault(self._nodes[rank], rank)
        return wanted

    def _hand_over(self) -> None:
        """Bring what ranks are about to be offered to their nodes, once each."""
        wanted = self._wanted()
        asked: dict[int, dict[str, str]] = {}
        for rank, function, digest in wanted:
            asked.setdefault(rank, {})[function] = digest
        if not asked:
            return
        arguments = {rank: (found,) for rank, found in asked.items()}
        answers = self._stages.ask("load", RankWorker.hand_out, arguments, is_work=False)
        taken: dict[str, dict[int, Shared]] = {}
        for (rank, function, _), takers in wanted.items():
            if (handed := answers[rank].get(function)) is not None:
                taken.setdefault(function, {}).update(dict.fromkeys(takers.values(), Shared(handed)))
        for function, by_rank in taken.items():
            given = {rank: (function, shared) for rank, shared in by_rank.items()}
            self._stages.ask("load", RankHost.take_in, given, is_work=False)

    def _load(self) -> Ledger:
        """All others load what they hold or adopt what is offered; what is unproven is only considered."""
        loads: dict[int, list[str]] = {}
        offers: dict[int, dict[str, str]] = {}
        considered: dict[int, dict[str, str]] = {}
        for slot, action in self._actions.items():
            rank, function = slot
            if isinstance(action, Load):
                loads.setdefault(rank, []).append(function)
            elif offered := self._offered(slot, action):
                kind = considered if slot in self.unproven else offers
                kind.setdefault(rank, {})[function] = offered
        ranks = tuple(sorted(loads.keys() | offers.keys() | considered.keys()))
        if not ranks:
            return {}
        with self._stages.stage("load", ranks):
            arguments = {
                rank: (
                    tuple(loads.get(rank, ())),
                    offers.get(rank, {}),
                    considered.get(rank, {}),
                    tuple(function for function in offers.get(rank, {}) if (rank, function) in self.makers),
                )
                for rank in ranks
            }
            answers = self._stages.ask("load", RankHost.settle, arguments)
            self._stages.agree_on_silence("load", offers.keys() | considered.keys())
            settled = {
                rank: tuple(item for item in found if item.function not in considered.get(rank, {}))
                for rank, found in answers.items()
            }
            self._stages.tell("load", settled)
        return {(rank, result.function): result for rank, results in answers.items() for result in results}

    def _offered(self, slot: Slot, action: Action) -> str:
        """Digest of the artifact that an action hands to a rank; empty where it hands it none."""
        if isinstance(action, Compile | GiveUp):
            return ""
        if isinstance(action, AwaitLeader):
            result = self.made[action.leader, slot[1]]
            return result.digest if result.ok else ""
        return action.digest

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
            self._stages.audited(
                AuditReport(
                    round=self._state.round,
                    function=function,
                    leader=maker,
                    ranks=ranks,
                    outcome=outcome,
                    difference=difference,
                    seconds=sum(result.seconds for result in traced),
                    cpu_s=sum(result.cpu_s for result in traced),
                )
            )
            if outcome == "differs":
                self._stages.problem(
                    f"audit: {function} is traced otherwise on {ranks_text(ranks)} than on rank {maker}, and "
                    f"no condition says so; what rank {maker} compiled is not used there, and nothing of the "
                    f"function is stored: {difference}"
                )

    def _attempt(self, slot: Slot, action: Action, result: FunctionResult | None) -> Attempt:
        own = self.traces.get(slot, "")
        if result is None:
            return Attempt(ok=False, digest="", reason="its leader could not compile it", trace=own)
        is_compile, is_unproven = isinstance(action, Compile), slot in self.unproven
        return Attempt(
            ok=result.ok and not is_unproven,
            digest=result.digest if is_compile else self._offered(slot, action),
            reason=result.reason,
            error=result.error,
            out_of_reach=not (is_compile or result.ok or result.guard_failed),
            takes=result.ok and is_unproven,
            trace=own if not is_compile else result.trace if result.digest in self.fresh else "",
            difference=self.differences.get(slot, ""),
        )


def _by_rank(results: Ledger) -> dict[int, tuple[FunctionResult, ...]]:
    found: dict[int, tuple[FunctionResult, ...]] = {}
    for (rank, _), result in results.items():
        found[rank] = (*found.get(rank, ()), result)
    return found
