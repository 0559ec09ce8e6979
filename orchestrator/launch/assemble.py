"""Puts the report of a launch together from what its stages brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from warmrank.cache_store.backends.places import TierState
from warmrank.cache_store.records.manifest import environments_of
from warmrank.orchestrator.errors import LaunchFailed, in_words
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.report import (
    SCHEMA_VERSION,
    Committed,
    Failure,
    FunctionReport,
    NodeFetch,
    NodeReport,
    RankReport,
    Report,
    totals,
)
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.seats import Seat
from warmrank.worker.results import FunctionProbe, FunctionResult, RankPlace, Verification, function_of_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """What the ranks ended with, each by rank; a script has neither probes nor checks."""

    probes: Mapping[int, tuple[FunctionProbe, ...]]
    results: Mapping[int, tuple[FunctionResult, ...]]
    checks: Mapping[int, Verification]

    @property
    def is_new(self) -> bool:
        """Whether some rank has an artifact that its partition did not hold before."""
        return any(result.outcome != "loaded" for results in self.results.values() for result in results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What the launch had to do with its store; nothing where it has none."""

    tiers: tuple[TierState, ...] = ()
    fetches: tuple[NodeFetch, ...] = ()
    committed: Committed = field(default_factory=Committed)
    nodes: tuple[NodeReport, ...] = ()


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


def assemble(stages: Stages, known: Known, *, warm: Warm, moved: Moved) -> Report:
    """The report of a launch that has done its work."""
    ranks = tuple(
        _rank_report(
            stages,
            seat,
            pid=place.pid,
            functions=_functions(seat.rank, warm),
            verification=warm.checks.get(seat.rank),
        )
        for seat, place in zip(stages.gang.seats, known.places, strict=True)
    )
    return _put_together(stages, known, ranks=ranks, moved=moved)


def failed_report(stages: Stages, known: Known, error: BaseException, exit_code: int) -> Report:
    """The report of a launch that ended with an error, as far as it came."""
    ranks = tuple(_rank_report(stages, seat, pid=seat.pid) for seat in stages.gang.seats)
    if isinstance(error, LaunchFailed) and not error.logs:
        ranks = tuple(replace(rank, log="") for rank in ranks)
    moved = Moved(tiers=known.tiers, fetches=known.fetches)
    found = _put_together(stages, known, ranks=ranks, moved=moved)
    failure = Failure(kind=type(error).__name__, message=in_words(error), stage=stages.running)
    if isinstance(error, LaunchFailed):
        failure = replace(failure, stage=error.stage, causes=error.causes, silent=error.silent)
    return replace(found, outcome="failed", exit_code=exit_code, failure=failure)


def _put_together(stages: Stages, known: Known, *, ranks: tuple[RankReport, ...], moved: Moved) -> Report:
    """What the reports of all launches have in common; that of a warm one is whole."""
    config = stages.config
    ranks_in = {place.rank: place.environment for place in known.places}
    found = environments_of(ranks_in) if ranks_in else None
    return Report(
        schema_version=SCHEMA_VERSION,
        outcome="warm",
        exit_code=0,
        failure=None,
        course=stages.state.course(now_s=stages.wall_s()),
        name=config.name,
        launch_key=launch_key(config),
        identity=identity(config),
        environment=found.environment if found else {},
        other_environments=found.others if found else (),
        world_size=config.ranks,
        parallel=config.parallel.sizes(),
        started=known.started,
        cache_dir=str(config.cache_dir),
        store=config.store.location if config.store else "",
        tiers=moved.tiers,
        record=moved.committed.record,
        ranks=ranks,
        fetches=moved.fetches,
        publishes=moved.committed.publishes,
        node_artifacts=moved.nodes,
        nondeterministic=moved.committed.nondeterministic,
        queued_on=moved.committed.queued_on,
        unsigned=moved.committed.unsigned,
        stages=stages.report(),
        totals=totals(ranks, moved.fetches, moved.committed, stages.wall_s()),
        problems=stages.problems,
    )


def _rank_report(
    stages: Stages,
    seat: Seat,
    *,
    pid: int,
    functions: tuple[FunctionReport, ...] = (),
    verification: Verification | None = None,
) -> RankReport:
    """One rank: where it is, and what became of it."""
    return RankReport(
        rank=seat.rank,
        host=seat.host,
        node_rank=seat.node_rank,
        local_rank=seat.local_rank,
        pid=pid,
        log=stages.gang.log_of(seat.rank),
        functions=functions,
        verification=verification,
    )


def _functions(rank: int, warm: Warm) -> tuple[FunctionReport, ...]:
    keys = {probe.function: probe.request_key for probe in warm.probes.get(rank, ())}
    return tuple(
        FunctionReport(
            function=result.function,
            outcome=result.outcome,
            reason=result.reason,
            request_key=keys.get(result.function) or keys.get(function_of_unit(result.function), ""),
            digest=result.digest,
            size_bytes=result.size_bytes,
            beside=result.beside,
            path=result.path,
            seconds=result.seconds,
            num_captures=result.num_captures,
            pool_bytes=result.pool_bytes,
            runtime_state=result.runtime_state,
        )
        for result in warm.results[rank]
    )
