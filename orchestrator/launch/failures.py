"""Failures of a launch: made into one error, and tried again as often as their budget allows; pure.

What ranks report themselves (a wrong workload, a failed check, a forbidden compile) would come again, and
ends the launch. What befell them (a death, a lost node, a hang, ranks that did not come up) is tried again.
Once a rank or node is lost, the errors of the others are collateral. A compile that fails is a result, never
cached, and no reason to stop a rank that does not need it; the next launch compiles only what failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from warmrank.cache_store.errors import UnwritableDisk
from warmrank.orchestrator.causes import CLUSTER_LOST, DIED, NODE_LOST, STOPPED, TIMEOUT, WorkerFailure
from warmrank.orchestrator.config.models import Retries
from warmrank.orchestrator.errors import (
    CannotStart,
    CompileForbidden,
    ForbiddenCompile,
    LaunchFailed,
    ranks_text,
)
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.launch.plan_state import OF_THE_FUNCTION, Avoided, Failed, PlanState, Slot
from warmrank.orchestrator.seats import Gang, Seat, distinct_hosts


def late(
    stage: str,
    rank: int,
    *,
    timeout_s: float,
    status: ProcessStatus | None,
    needs_store: bool,
    stacks: str = "",
) -> WorkerFailure:
    """The failure of a rank that did not answer in time.

    Args:
        stage: that it was asked in.
        rank: that was asked.
        timeout_s: how long it was waited for.
        status: what was seen of it last.
        needs_store: whether nothing goes on without some place of the store.
        stacks: of its threads, as they stood then.
    """
    doing = f", last seen in {status.doing!r}" if status is not None and status.doing else ""
    return WorkerFailure(
        rank=rank,
        stage=stage,
        kind=TIMEOUT,
        message=f"no answer within {timeout_s:g} s{doing}",
        remedy=f"raise timeouts.{stage}_s, or look into the rank's log for what it waits on",
        # The rank is warm by then: what hangs is the store.
        store_fault=stage == "commit" and not needs_store,
        traceback=stacks,
    )


def raise_failed(
    stage: str, failures: list[WorkerFailure], *, gang: Gang, num_ranks: int, silent: tuple[int, ...] = ()
) -> NoReturn:
    """Make one error of all failures.

    Args:
        stage: in which ranks failed.
        failures: at least one.
        gang: where ranks are.
        num_ranks: how many the launch has.
        silent: ranks that were asked too, and had not answered yet.

    Raises:
        CompileForbidden: a rank would have had to compile, which is forbidden.
        LaunchFailed: otherwise.
    """
    is_one_node = len({seat.node_rank for seat in gang.seats}) <= 1
    error = LaunchFailed(
        stage,
        failures,
        num_ranks=num_ranks,
        silent=silent,
        # On a disk that takes nothing there are none, or they lack their end.
        logs="" if any(failure.kind == UnwritableDisk.__name__ for failure in failures) else gang.logs,
        hosts={} if is_one_node else distinct_hosts(gang.seats),
    )
    misses = _forbidden(error.failures)
    if misses:
        raise CompileForbidden(misses) from error
    raise error


def _forbidden(failures: Iterable[WorkerFailure]) -> list[ForbiddenCompile]:
    """What ranks would have had to compile, equal causes grouped."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for failure in failures:
        if failure.kind == "CompileForbidden":
            ranks.setdefault((failure.function, failure.message), []).append(failure.rank)
    return [
        ForbiddenCompile(function=function, reason=reason, ranks=tuple(found))
        for (function, reason), found in ranks.items()
    ]


Seats = Mapping[int, Seat]
"""Every rank's seat."""

_MAX_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """What a rank was to compile when the attempt of a launch was cut off.

    Attributes:
        function: the cached function.
        request_key: for whom; opaque, and equal in the next attempt.
        rank: who compiled.
        node_id: its node.
        host: that node's host name, where no other node of the attempt had it; else empty.
    """

    function: str
    request_key: str
    rank: int
    node_id: str
    host: str


class CompileCut(LaunchFailed):
    """A leader died or did not answer, so that the attempt is over.

    Attributes:
        compiling: what the lost leaders were to compile: the first of a rank, or one after it.
    """

    def __init__(self, error: LaunchFailed, compiling: Iterable[Compiling]) -> None:
        Exception.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)
        self.compiling = tuple(compiling)


def cut_off(slots: Iterable[Slot], asked: Mapping[Slot, str], seats: Seats) -> tuple[Compiling, ...]:
    """What lost leaders were to compile.

    Args:
        slots: lost leaders, with each function that they led.
        asked: request key of every slot.
        seats: of the attempt that was cut off.
    """
    alone = _nodes_alone(seats)
    return tuple(
        Compiling(
            function=function,
            request_key=asked[rank, function],
            rank=rank,
            node_id=seats[rank].node_id,
            host=seats[rank].host if seats[rank].host in alone else "",
        )
        for rank, function in slots
    )


def avoided(former: Iterable[Compiling], seats: Seats) -> tuple[Avoided, ...]:
    """Where, in this attempt, former attempts were cut off: by node, for a rank may be elsewhere by now.

    A node whose Ray was started anew has another id: it is known by its host name, where that is its alone.
    """
    nodes = {seat.node_id: seat.node_rank for seat in seats.values()}
    alone = _nodes_alone(seats)
    found = [(lost, nodes.get(lost.node_id, alone.get(lost.host))) for lost in former]
    return tuple(
        Avoided(
            function=lost.function,
            request_key=lost.request_key,
            rank=lost.rank if lost.rank in seats and seats[lost.rank].node_rank == node else None,
            node=node,
        )
        for lost, node in found
        if node is not None
    )


def _nodes_alone(seats: Seats) -> dict[str, int]:
    """The nodes whose host name no other node has: containers and nodes on one machine may share theirs."""
    nodes: dict[str, set[int]] = {}
    for seat in seats.values():
        nodes.setdefault(seat.host, set()).add(seat.node_rank)
    return {host: min(found) for host, found in nodes.items() if len(found) == 1}


def retries(failed: Iterable[Failed], state: PlanState, seats: Seats) -> tuple[str, ...]:
    """What to say of compiles that failed for the first time and are tried again; equal causes grouped."""
    num_failed: dict[object, int] = {}
    for earlier in state.failed:
        num_failed[earlier.class_key] = num_failed.get(earlier.class_key, 0) + 1
    ranks: dict[tuple[str, str], list[int]] = {}
    for one in failed:
        if num_failed[one.class_key] == 1 and not one.is_final:
            ranks.setdefault((one.class_key[0], one.reason), []).append(one.rank)
    return tuple(
        f"{function} did not compile on {_where(found, seats)}, and is tried once more: {reason}"
        for (function, reason), found in ranks.items()
    )


def failures_of(state: PlanState, seats: Seats) -> list[WorkerFailure]:
    """Why something was given up: functions, leaders, nodes and causes."""
    wanted: dict[str, set[int]] = {}
    for demand in state.lost:
        wanted.setdefault(demand.function, set()).add(demand.rank)
    lost = {key for demand in state.lost for key in (demand.class_key, demand.own_key)}
    tried: dict[tuple[str, str, str], list[int]] = {}
    for failed in state.failed:
        if failed.class_key in lost:
            tried.setdefault((failed.class_key[0], failed.error, failed.reason), []).append(failed.rank)
    return [
        _failure(rank, function, error, reason, remedy)
        for (function, error, reason), ranks in tried.items()
        for remedy in [_remedy(_where(ranks, seats), wanted[function])]
        for rank in dict.fromkeys(ranks)
    ]


def _failure(rank: int, function: str, error: str, reason: str, remedy: str) -> WorkerFailure:
    kind, message = error or "CompileFailed", reason.removeprefix(f"{error}: ")
    if kind in OF_THE_FUNCTION:
        remedy = f"correct that line; {remedy}"
    return WorkerFailure(
        rank=rank, stage="compile", kind=kind, message=message, function=function, remedy=remedy
    )


def _remedy(where: str, wanted: Iterable[int]) -> str:
    return (
        f"see the logs of {where}, who compiled it for {ranks_text(wanted)}; all else is kept in the ranks' "
        "cache directories, so that the next launch compiles only what failed"
    )


def _where(ranks: Sequence[int], seats: Seats) -> str:
    """Ranks with their nodes: ``rank 0 on node 0 (a), rank 4 on node 1 (b)``."""
    distinct = list(dict.fromkeys(ranks))
    named = [
        f"rank {rank} on node {seats[rank].node_rank} ({seats[rank].host})" for rank in distinct[:_MAX_NAMED]
    ]
    more = len(distinct) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])


Budget = Literal["rank", "node", "hang", "start"]

_BUDGETS: tuple[tuple[frozenset[str], Budget], ...] = (
    (frozenset({NODE_LOST}), "node"),
    (frozenset({DIED}), "rank"),
    (frozenset({"PortInUse"}), "start"),  # the others wait for rank 0 in vain
    # torch's names for a peer that went away or is silent: no death was seen, so one hangs or is cut off.
    (frozenset({STOPPED, TIMEOUT, "DistBackendError", "DistNetworkError", "DistStoreError"}), "hang"),
)


def budget_of(error: Exception) -> Budget | None:
    """What the error is counted against; None for one that ends the launch."""
    if isinstance(error, CannotStart):
        if error.may_pass:
            return "node" if error.has_lost_node else "start"
        return None
    if not isinstance(error, LaunchFailed):
        return None
    kinds = {failure.kind for failure in error.failures}
    if CLUSTER_LOST in kinds:
        return None  # there is nothing left to start ranks on
    return next((budget for found, budget in _BUDGETS if kinds & found), None)


def is_lost(error: Exception) -> bool:
    """Whether the cluster is to blame, not the workload: another launch may end well."""
    if isinstance(error, LaunchFailed) and any(failure.kind == CLUSTER_LOST for failure in error.failures):
        return True
    return (isinstance(error, CannotStart) and error.blames_cluster) or budget_of(error) is not None


class RetryBudget:
    """What was spent of the budgets."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._spent: Counter[Budget] = Counter()

    @property
    def has_lost_nodes(self) -> bool:
        """Whether an attempt ended because a node was lost."""
        return self._spent["node"] > 0

    def another(self, error: Exception) -> str:
        """Spend one attempt more; why there is one, or empty for none."""
        budget = budget_of(error)
        if budget is None:
            return ""
        allowed: int = getattr(self._retries, budget)
        if self._spent[budget] >= allowed:
            return ""
        self._spent[budget] += 1
        return f"{_in_short(error)} (retries.{budget}: {self._spent[budget]} of {allowed})"


def _in_short(error: Exception) -> str:
    """The first cause without its details, which stand in the error itself."""
    if isinstance(error, LaunchFailed):
        first = error.causes[0]
        return f"stage {error.stage}: {ranks_text(first.ranks)}: {first.kind}"
    return str(error).partition("\n")[0]
