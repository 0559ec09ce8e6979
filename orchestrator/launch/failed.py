"""The report of a launch that failed, as far as it came."""

from __future__ import annotations

from dataclasses import replace

from warmrank.orchestrator.errors import LaunchFailed, in_words
from warmrank.orchestrator.launch.assemble import Known, Moved, put_together, rank_report
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.show.course import Course
from warmrank.orchestrator.show.report import Failure, Report


def failed_report(
    stages: Stages, known: Known, course: Course, error: BaseException, exit_code: int
) -> Report:
    """The report of a launch that ended with an error."""
    ranks = tuple(rank_report(stages, seat, pid=seat.pid) for seat in stages.gang.seats)
    if isinstance(error, LaunchFailed) and not error.logs:
        ranks = tuple(replace(rank, log="") for rank in ranks)
    moved = Moved(tiers=known.tiers, fetches=known.fetches)
    found = put_together(stages, known, course, ranks=ranks, moved=moved)
    failure = _failure(error, stages.running)
    return replace(found, outcome="failed", exit_code=exit_code, failure=failure)


def _failure(error: BaseException, stage: str) -> Failure:
    message = in_words(error)
    if isinstance(error, LaunchFailed):
        return Failure(
            kind=type(error).__name__,
            message=message,
            stage=error.stage,
            causes=error.causes,
            silent=error.silent,
        )
    return Failure(kind=type(error).__name__, message=message, stage=stage)
