"""The workload's own check of the warm model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmrank.worker.errors import WorkloadError
from warmrank.worker.results import Verification

if TYPE_CHECKING:
    from warmrank.worker.workload import Workload


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
