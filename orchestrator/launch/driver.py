"""The driver of a launch: attempts, each a gang that goes through the stages; only here is it committed.

The store may be away, or fall silent on the way: the launch then goes on without it, leaves on each node's
disk what is to be published later, and says so in its report. A launch record is created last, when every
rank's manifest is in the store: a launch is whole in the store or absent. What an attempt compiled stays on
its nodes' disks and, as blobs, in the store, so that the next one compiles what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmrank.cache_store.records.manifest import CaptureEntry, utc_now
from warmrank.orchestrator.config.reading import Config, require_workload
from warmrank.orchestrator.errors import CannotStart, LaunchFailed
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.launch import steps
from warmrank.orchestrator.launch.assemble import Known, Moved, Warm, assemble, failed_report
from warmrank.orchestrator.launch.commit import commit
from warmrank.orchestrator.launch.failed_compiles import CompileCut, Compiling
from warmrank.orchestrator.launch.first_calls import run_calls
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.launch.retries import Spent
from warmrank.orchestrator.launch.rounds import settle_all
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.launch.state import Listener, silence
from warmrank.orchestrator.launch.turns import turn
from warmrank.orchestrator.signals import held_back, named, undisturbed
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.orchestrator.store.stores import Access


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
        spent, reason = Spent(self._stages.config.retries), ""
        while True:
            self._stages.begin_attempt(reason)
            self._known.begin_attempt()
            try:
                with named():
                    return self._attempt(access)
            except (LaunchFailed, CannotStart) as error:
                self._avoid += error.compiling if isinstance(error, CompileCut) else ()
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
