"""The workload's own check of the warm model, and the cached functions that it may call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmrank.worker.errors import WorkloadError
from warmrank.worker.results import Verification

if TYPE_CHECKING:
    from warmrank.worker.cached_function import CachedFunction
    from warmrank.worker.workload import Workload


def functions_of(workload: Workload) -> tuple[CachedFunction, ...]:
    """The cached functions of a workload's calls, then those that modules of its model keep as attributes."""
    from warmrank.worker.cached_function import CachedFunction

    kept = (
        value
        for module in workload.model.modules()
        for value in vars(module).values()
        if isinstance(value, CachedFunction)
    )
    return tuple(dict.fromkeys((*(call.function for call in workload.calls), *kept)))


def check(workload: Workload, entrypoint: str) -> Verification:
    """Compare the warm model with its reference, if the workload has one.

    Raises:
        WorkloadError: the check returned something else than a verification.
    """
    if workload.check is None:
        return Verification(ok=True, max_error=0.0, tolerance=0.0, compared="")
    found = workload.check()
    if not isinstance(found, Verification):
        kind = type(found).__qualname__
        msg = (
            f"the check of {entrypoint} returned {kind}; expected a warmrank.Verification "
            "(ok, max_error, tolerance, compared)"
        )
        raise WorkloadError(msg, entrypoint=entrypoint)
    return found
