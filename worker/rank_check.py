"""The workload's own check of the warm model, and what it needed beyond the launch's functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from worker.errors import WorkloadError
from worker.results import Verification

if TYPE_CHECKING:
    from worker.cached_function import CachedFunction
    from worker.workload import Workload


def check(workload: Workload, entrypoint: str, functions: Sequence[CachedFunction]) -> Verification:
    """Compare the warm model with its reference, if the workload has one.

    Args:
        workload: what the entrypoint returned.
        entrypoint: named in errors.
        functions: those that the workload calls.

    Raises:
        WorkloadError: the check returned something else than a verification.
    """
    if workload.check is None:
        return Verification(ok=True, max_error=0.0, tolerance=0.0, compared="")
    before = [len(function.variants) for function in functions]
    found = workload.check()
    if not isinstance(found, Verification):
        kind = type(found).__qualname__
        msg = (
            f"the check of {entrypoint} returned {kind}; expected a worker.Verification "
            "(ok, max_error, tolerance, compared)"
        )
        raise WorkloadError(msg, entrypoint=entrypoint)
    extra = [
        function.name
        for function, num in zip(functions, before, strict=True)
        if len(function.variants) != num
    ]
    if extra:
        # Not among the launch's functions, so neither planned nor published: somebody should know.
        note = f"the check needed more artifacts of {', '.join(extra)}: warm them up with a worker.Call"
        return replace(found, compared=f"{found.compared}; {note}")
    return found
