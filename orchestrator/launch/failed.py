"""The report of a launch that failed, as far as it came."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.backends.tier import TierState
from orchestrator.errors import LaunchFailed, in_words
from orchestrator.launch.identity import identity, launch_key
from orchestrator.launch.stages import Stages
from orchestrator.show.course import Course
from orchestrator.show.report import SCHEMA_VERSION, Failure, RankReport, Report, totals
from orchestrator.show.store_report import Committed, NodeFetch
from worker.results import RankPlace


@dataclass(kw_only=True)
class Known:
    """What is known so far of a launch that goes on; the stages of the attempt fill it.

    Attributes:
        started: ISO 8601 in UTC.
        tiers: the store's places as the driver found them.
        places: where the ranks of the attempt are, as far as they came up.
        fetches: what its nodes copied.
    """

    started: str
    tiers: tuple[TierState, ...] = ()
    places: tuple[RankPlace, ...] = ()
    fetches: tuple[NodeFetch, ...] = ()

    def begin_attempt(self) -> None:
        """Forget what is of the attempt before."""
        self.places, self.fetches = (), ()


def failed_report(
    stages: Stages, known: Known, course: Course, error: BaseException, exit_code: int
) -> Report:
    """The report of a launch that ended with an error."""
    config = stages.config
    ranks = tuple(
        RankReport(
            rank=seat.rank,
            host=seat.host,
            node_rank=seat.node_rank,
            local_rank=seat.local_rank,
            pid=seat.pid,
            log=stages.gang.log_of(seat.rank),
            functions=(),
            verification=None,
        )
        for seat in stages.gang.seats
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        outcome="failed",
        exit_code=exit_code,
        failure=_failure(error, stages.running),
        course=course,
        name=config.name,
        launch_key=launch_key(config),
        identity=identity(config),
        environment=dict(known.places[0].environment) if known.places else {},
        world_size=config.ranks,
        parallel=config.parallel.model_dump(),
        started=known.started,
        cache_dir=str(config.cache_dir),
        store=config.store.location if config.store else "",
        tiers=known.tiers,
        record="",
        ranks=ranks,
        fetches=known.fetches,
        publishes=(),
        nondeterministic=(),
        queued_on=(),
        stages=stages.report(),
        totals=totals(ranks, known.fetches, Committed(), stages.wall_s()),
        problems=tuple(stages.problems),
    )


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
