"""What a stage's failures are made into: silence into a failure, and all failures into one error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from warmrank.cache_store.errors import UnwritableDisk
from warmrank.orchestrator.causes import TIMEOUT, WorkerFailure
from warmrank.orchestrator.errors import CompileForbidden, ForbiddenCompile, LaunchFailed
from warmrank.orchestrator.gang.launcher import Sight
from warmrank.orchestrator.seats import Gang, distinct_hosts


def late(
    stage: str, rank: int, *, timeout_s: float, sight: Sight | None, needs_store: bool, stacks: str = ""
) -> WorkerFailure:
    """The failure of a rank that did not answer in time.

    Args:
        stage: that it was asked in.
        rank: that was asked.
        timeout_s: how long it was waited for.
        sight: what was seen of it last.
        needs_store: whether nothing goes on without some place of the store.
        stacks: of its threads, as they stood then.
    """
    doing = f", last seen in {sight.doing!r}" if sight is not None and sight.doing else ""
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
