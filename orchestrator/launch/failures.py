"""Failures of a launch: made into one error, and tried again as often as their budget allows; pure.

What ranks report themselves would come again, and ends the launch; what befell them (a death, a lost node, a
hang) is tried again, as `causes.policy_of` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn

from warmrank.orchestrator.causes import Budget, FailureKind, WorkerFailure, policy_of
from warmrank.orchestrator.config.models import Retries
from warmrank.orchestrator.errors import (
    CannotStart,
    CompileForbidden,
    LaunchFailed,
    forbidden_compiles,
    ranks_text,
)
from warmrank.orchestrator.launch.plan_state import Avoided, Failed, PlanState
from warmrank.orchestrator.nodes import Gang, Seat, distinct_hosts
from warmrank.orchestrator.text import grouped

Seats = Mapping[int, Seat]

_MAX_NAMED = 8


def raise_failed(
    stage: str, failures: list[WorkerFailure], *, gang: Gang, num_ranks: int, silent: tuple[int, ...] = ()
) -> NoReturn:
    """Make one error of all failures, at least one; ``silent`` ranks were asked too, and have not answered.

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
        logs="" if any(found.kind == FailureKind.UNWRITABLE_DISK for found in failures) else gang.logs,
        hosts={} if is_one_node else distinct_hosts(gang.seats),
    )
    misses = [each for each in error.failures if each.kind == FailureKind.COMPILE_FORBIDDEN]
    if misses:
        raise CompileForbidden(
            forbidden_compiles((each.function, each.message, each.rank) for each in misses)
        ) from error
    raise error


class Compiling(NamedTuple):
    """A compile of a rank that was lost, and where that was."""

    function: str
    request_key: str
    seat: Seat


def avoided(former: Iterable[Compiling], seats: Seats) -> Iterator[Avoided]:
    """Places in this attempt where former ones were cut off: by node, for a rank may be elsewhere by now.

    A node whose Ray was started anew has another id: it is known by its host name.
    """
    for lost in former:
        nodes = {seat.node_rank for seat in seats.values() if seat.node_id == lost.seat.node_id}
        nodes = nodes or {seat.node_rank for seat in seats.values() if seat.host == lost.seat.host}
        rank = lost.seat.rank
        for node in nodes:
            same = rank if rank in seats and seats[rank].node_rank == node else None
            yield Avoided(function=lost.function, request_key=lost.request_key, rank=same, node=node)


def retries(failed: Iterable[Failed], state: PlanState, seats: Seats) -> tuple[str, ...]:
    """Lines on compiles that failed for the first time and are tried again; equal causes grouped."""
    num_failed = Counter(earlier.class_key for earlier in state.failed)
    members = grouped((demand.class_key, demand.rank) for demand in state.demands)
    ranks: dict[tuple[str, str], list[int]] = {}
    for one in failed:
        is_alone = one.comes_again and {*members.get(one.class_key, ())} <= {one.rank}
        if num_failed[one.class_key] == 1 and not (one.is_final or is_alone):
            ranks.setdefault((one.class_key[0], one.reason), []).append(one.rank)
    return tuple(
        f"{function} did not compile on {_where(found, seats)}, and is tried once more: {reason}"
        for (function, reason), found in ranks.items()
    )


def failures_of(state: PlanState, seats: Seats) -> list[WorkerFailure]:
    """Reasons for giving up: functions, leaders, nodes and causes."""
    wanted = grouped((demand.function, demand.rank) for demand in state.lost)
    lost = {key for demand in state.lost for key in (demand.class_key, demand.own_key)}
    tried = grouped(
        ((failed.class_key[0], failed.error, failed.reason), failed.rank)
        for failed in state.failed
        if failed.class_key in lost
    )
    found = []
    for (function, error, reason), ranks in tried.items():
        remedy = (
            f"see the logs of {_where(ranks, seats)}, who compiled it for {ranks_text(wanted[function])}; "
            "all else is kept in the ranks' cache directories, so that the next launch compiles only what "
            "failed"
        )
        if error == FailureKind.FUNCTION_RAISED:
            remedy = f"correct that line; {remedy}"
        kind, message = error or FailureKind.COMPILE_FAILED, reason.removeprefix(f"{error}: ")
        found += [
            WorkerFailure(
                rank=rank, stage="compile", kind=kind, message=message, function=function, remedy=remedy
            )
            for rank in dict.fromkeys(ranks)
        ]
    return found


def _where(ranks: Iterable[int], seats: Seats) -> str:
    """Ranks with their nodes: ``rank 0 on node 0 (a), rank 4 on node 1 (b)``."""
    distinct = list(dict.fromkeys(ranks))
    named = [
        f"rank {rank} on node {seats[rank].node_rank} ({seats[rank].host})" for rank in distinct[:_MAX_NAMED]
    ]
    more = len(distinct) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])


def budget_of(error: Exception) -> Budget | None:
    """The budget that another attempt takes; None for an error that ends the launch."""
    if isinstance(error, CannotStart) and error.may_pass:
        return "node" if error.has_lost_node else "start"
    if isinstance(error, LaunchFailed):
        return policy_of(*(failure.kind for failure in error.failures)).budget
    return None


def is_lost(error: Exception) -> bool:
    """True if the cluster is to blame, not the workload: another launch may end well."""
    if isinstance(error, LaunchFailed):
        return policy_of(*(failure.kind for failure in error.failures)).exit == "LOST"
    return isinstance(error, CannotStart) and (error.blames_cluster or error.may_pass)


class RetryBudget:
    """The spent part of the budgets."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._spent: Counter[Budget] = Counter()

    @property
    def has_lost_nodes(self) -> bool:
        """True if an attempt ended because a node was lost."""
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
        if isinstance(error, LaunchFailed):
            first = error.causes[0]
            why = f"stage {error.stage}: {ranks_text(first.ranks)}: {first.kind}"
        else:
            why = str(error).partition("\n")[0]
        return f"{why} (retries.{budget}: {self._spent[budget]} of {allowed})"
