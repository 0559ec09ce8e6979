"""The driver of a launch: the stages, one after the other, and the only place that commits.

The store may be away, or fall silent on the way: the launch then goes on without it, leaves on each node's
disk what is to be published later, and says so in its report. A launch record is created last, when every
rank's manifest is in the store: a launch is whole in the store or absent.
"""

from __future__ import annotations

from cache_store.records.manifest import CaptureEntry, utc_now
from orchestrator.config.reading import Config
from orchestrator.gang.launcher import Launcher
from orchestrator.launch import steps
from orchestrator.launch.assemble import Moved, Warm, assemble
from orchestrator.launch.commit import commit
from orchestrator.launch.rounds import settle_all
from orchestrator.launch.stages import Stages
from orchestrator.show.listener import Listener, Silence
from orchestrator.show.report import Report
from orchestrator.signals import undisturbed
from worker.settings import settings

_EMULATED = (
    "emulated NPU: tensors lie on the CPU; times and numbers say nothing of an NPU, and artifacts are keyed "
    "for the emulator only"
)


def launch(
    config: Config,
    *,
    no_compile: bool = False,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> Report:
    """Run a launch until every rank is warm.

    Args:
        config: what to launch, where.
        no_compile: whether a miss is an error; config and `WARMRANK_NO_COMPILE` may say so as well.
        listener: is told what happens; None for nobody.
        launcher: runs the ranks; None for Ray.

    Raises:
        LaunchFailed: a stage failed on at least one rank.
        CompileForbidden: compiling is forbidden and something missed.
        CannotStart: the ranks could not be started.
        cache_store.errors.StoreError: the store's place holds no usable store, or a key file is not usable.
    """
    no_compile = no_compile or config.no_compile or settings().no_compile
    launcher = launcher or ray_launcher(config)
    started = utc_now()
    stages = Stages(config, launcher, listener or Silence())
    if config.device == "npu" and settings().emulate_npu:
        stages.problems.append(_EMULATED)
    try:
        access = steps.open_store(stages)
        places = steps.start(stages, access, no_compile=no_compile)
        is_stored = access is not None and access.store is not None
        fetched = steps.fetch(stages) if is_stored else steps.Fetched()
        warm = (
            run_scripts(stages)
            if stages.is_script
            else warm_up(stages, no_compile=no_compile, planned=fetched.captures)
        )
        moved = Moved()
        if access is not None:
            committed = commit(stages, access, places[0], is_new=warm.is_new)
            moved = Moved(
                tiers=access.found(),
                fetches=fetched.nodes,
                committed=committed,
                nodes=steps.node_artifacts(stages),
            )
        report = assemble(stages, places=places, warm=warm, moved=moved, started=started)
        stages.close()
    finally:
        with undisturbed():
            launcher.stop()
    return report


def warm_up(stages: Stages, *, no_compile: bool, planned: tuple[CaptureEntry, ...] = ()) -> Warm:
    """Bring every function of every rank to a captured, called and verified artifact.

    Args:
        stages: of the launch.
        no_compile: whether a miss is an error.
        planned: what earlier launches captured: captured again before the first call.
    """
    steps.build(stages)
    probes = steps.probe(stages)
    ledger = settle_all(stages, probes, no_compile=no_compile)
    steps.capture(stages, ledger, planned)
    steps.first_call(stages, ledger)
    checks = steps.verify(stages)
    results = {rank: tuple(ledger[rank, found.function] for found in probes[rank]) for rank in sorted(probes)}
    return Warm(probes=probes, results=results, checks=checks)


def run_scripts(stages: Stages) -> Warm:
    """Run a plain script on every rank; each decides for itself, as it would without a launch."""
    return Warm(probes={}, results=steps.run_script(stages), checks={})


def ray_launcher(config: Config) -> Launcher:
    """The launcher on Ray, imported only where it is needed."""
    from orchestrator.gang.ray_launcher import RayLauncher

    return RayLauncher(config)
