"""The driver of a launch: attempts, each a gang that goes through the stages; only here is it committed.

The store may be away, or fall silent on the way: the launch then goes on without it, leaves on each node's
disk what is to be published later, and says so in its report. A launch record is created last, when every
rank's manifest is in the store: a launch is whole in the store or absent. What an attempt compiled stays on
its nodes' disks and, as blobs, in the store, so that the next one compiles what is left.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from warmrank.cache_store.backends.places import TierState
from warmrank.cache_store.cache_dir.single_flight import LOCKS, lock_in
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.records.manifest import CaptureEntry, environments_of, utc_now
from warmrank.orchestrator.config.reading import Config, require_workload
from warmrank.orchestrator.errors import CannotStart, LaunchFailed, in_words
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.gang.ray_session import way_in_now
from warmrank.orchestrator.launch import steps
from warmrank.orchestrator.launch.commit import commit
from warmrank.orchestrator.launch.failures import Compiling, RetryBudget
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
from warmrank.orchestrator.launch.rounds import settle_all
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.launch.state import Listener, silence
from warmrank.orchestrator.launch.steps import run_calls
from warmrank.orchestrator.seats import Seat
from warmrank.orchestrator.signals import held_back, named, undisturbed
from warmrank.worker.results import FunctionProbe, FunctionResult, RankPlace, Verification, function_of_unit
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.orchestrator.store.stores import Access

logger = logging.getLogger(__name__)


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


@contextlib.contextmanager
def turn(config: Config) -> Iterator[None]:
    """Wait while another launch of the same workload fills this machine's cache directory for the first time.

    Only where ranks run on this machine: what other nodes have is not known here. A directory that cannot be
    used is left to the ranks to tell of.
    """
    kind = config.cache_dir / LOCKS / f"launch-{launch_key(config)[:12]}"
    ended = kind.with_suffix(".ended")
    if way_in_now(config.ray) != "local" or ended.exists():
        yield
        return
    lock: FileLock | None = None
    try:
        with contextlib.suppress(UnusableCache):
            lock = lock_in(config.cache_dir, kind.with_suffix(".lock").name)
            _wait(lock, config)
        yield
        with contextlib.suppress(OSError):
            ended.touch(mode=0o600)
    finally:
        if lock is not None:
            lock.release()


def _wait(lock: FileLock, config: Config) -> None:
    try:
        try:
            lock.acquire()
        except Timeout:
            logger.warning(
                "Another launch fills %s for the first time: waiting for its end", config.cache_dir
            )
            lock.acquire(timeout=config.timeouts.compile_s)
    except Timeout:
        logger.warning("It did not end within timeouts.compile_s, %g s: going on", config.timeouts.compile_s)
    except (OSError, NotImplementedError) as error:
        logger.warning("Launching without a lock, which may compile twice: %s", error)


class Launch:
    """One launch, from start to commit, in as many attempts as it takes and may take.

    Args:
        config: what to launch, where.
        no_compile: whether a miss is an error; config and `WARMRANK_NO_COMPILE` may say so as well.
        listener: is told what happens; None for nobody.
        launcher: runs the ranks; None for Ray.
    """

    def __init__(
        self,
        config: Config,
        *,
        no_compile: bool = False,
        listener: Listener | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        require_workload(config, config.name)
        self._no_compile = no_compile or config.no_compile or settings().no_compile
        self._launcher = launcher or ray_launcher(config)
        self._stages = Stages(config, self._launcher, listener or silence)
        self._known = Known(started=utc_now())
        self._avoid: tuple[Compiling, ...] = ()

    def run(self) -> Report:
        """Launch until every rank is warm.

        Raises:
            LaunchFailed: a stage failed on at least one rank, and may not be tried again.
            CompileForbidden: compiling is forbidden and something missed.
            CannotStart: the ranks could not be started.
            cache_store.errors.StoreError: the store's place holds no usable store, or a key file is unusable.
        """
        stages = self._stages
        try:
            access = steps.open_store(stages)
            self._known.tiers = access.found() if access is not None else ()
            with turn(stages.config):
                return self._attempts(access)
        finally:
            with undisturbed():
                self._launcher.stop()

    def failed(self, error: BaseException, *, exit_code: int) -> Report:
        """The report of a launch whose `run` ended with this error."""
        return failed_report(self._stages, self._known, error, exit_code)

    def _attempts(self, access: Access | None) -> Report:
        spent, reason = RetryBudget(self._stages.config.retries), ""
        while True:
            self._stages.begin_attempt(reason)
            self._known.begin_attempt()
            try:
                with named():
                    return self._attempt(access)
            except (LaunchFailed, CannotStart) as error:
                self._avoid += error.compiling if isinstance(error, LaunchFailed) else ()
                reason = spent.another(error)
                if isinstance(error, CannotStart):
                    error.blames_cluster |= spent.has_lost_nodes
                self._stages.attempt_failed(error, is_last=not reason)
                if not reason:
                    raise
            except BaseException as error:
                self._stages.attempt_failed(error, is_last=True)
                raise
            with held_back():
                self._launcher.release()

    def _attempt(self, access: Access | None) -> Report:
        stages, known = self._stages, self._known
        known.places = steps.start(stages, access, no_compile=self._no_compile)
        is_stored = access is not None and access.store is not None
        fetched = steps.fetch(stages) if is_stored else steps.Fetched()
        known.fetches = fetched.nodes
        warm = (
            run_scripts(stages)
            if stages.is_script
            else warm_up(stages, no_compile=self._no_compile, planned=fetched.captures, avoid=self._avoid)
        )
        moved = Moved()
        if access is not None:
            committed = commit(stages, access, is_new=warm.is_new)
            moved = Moved(
                tiers=access.found(),
                fetches=fetched.nodes,
                committed=committed,
                nodes=steps.node_artifacts(stages),
            )
        report = assemble(stages, known, warm=warm, moved=moved)
        stages.close()
        return report


def launch(
    config: Config,
    *,
    no_compile: bool = False,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> Report:
    """Run a launch until every rank is warm; arguments as of `Launch`, errors as of `Launch.run`."""
    return Launch(config, no_compile=no_compile, listener=listener, launcher=launcher).run()


def warm_up(
    stages: Stages,
    *,
    no_compile: bool,
    planned: tuple[CaptureEntry, ...] = (),
    avoid: tuple[Compiling, ...] = (),
) -> Warm:
    """Bring every function of every rank to a captured, called and verified artifact.

    Args:
        stages: of the launch.
        no_compile: whether a miss is an error.
        planned: what earlier launches captured: captured again before the first call.
        avoid: what former attempts were lost in, and where.
    """
    steps.build(stages)
    probes = steps.probe(stages)
    # A call may need what one before it leaves behind: it gets another chance when its turn comes.
    later = {(rank, found.function) for rank, own in probes.items() for found in own[1:]}
    ledger = settle_all(stages, probes, no_compile=no_compile, avoid=avoid, may_wait=later)
    steps.capture(stages, ledger, planned)
    probes = run_calls(stages, probes, ledger, no_compile=no_compile)
    checks, extra = steps.verify(stages)
    results = {
        rank: (*(ledger[rank, found.function] for found in probes[rank]), *extra[rank])
        for rank in sorted(probes)
    }
    return Warm(probes=probes, results=results, checks=checks)


def run_scripts(stages: Stages) -> Warm:
    """Run a plain script on every rank; each decides for itself, as it would without a launch."""
    return Warm(probes={}, results=steps.run_script(stages), checks={})


def ray_launcher(config: Config) -> Launcher:
    """The launcher on Ray, imported only where it is needed."""
    from warmrank.orchestrator.gang.ray_launcher import RayLauncher

    return RayLauncher(config)
