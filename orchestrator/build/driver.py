"""An offline build: the partitions of all ranks of a launch, made on one machine without its devices.

The stages are those of a launch that need no device; the driver alone uses the store. Manifests come after
blobs and the launch record last, so a build that is stopped leaves the store without a new launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from warmrank.cache_store.fetch.staging import replicate
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, utc_now
from warmrank.cache_store.seed import Wanted, seed
from warmrank.cache_store.store import Store
from warmrank.orchestrator.build.plan import (
    BuildTarget,
    built_ranks,
    check_target,
    differences,
    model_rank,
    replica,
)
from warmrank.orchestrator.build.ranks import OfflineHost, OfflineLauncher, OfflineRankInit
from warmrank.orchestrator.build.report import (
    ALWAYS_LATER,
    BUILD_SCHEMA_VERSION,
    BuildReport,
    BuildTotals,
    ClassReport,
    NotBuilt,
    classes_of,
)
from warmrank.orchestrator.config.models import Config, EntrypointWorkload
from warmrank.orchestrator.errors import BadArgument, BuildFailed, ranks_text
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.launch import steps
from warmrank.orchestrator.launch.events import AuditReport
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.rounds import Ledger, settle_all
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.launch.state import Listener, silence
from warmrank.orchestrator.signals import undisturbed
from warmrank.worker.results import FunctionProbe, LeftOut


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How to build.

    Attributes:
        target: the machines that are built for.
        real_tensors: build the model with memory and values, on the CPU.
        every_rank: build the model of every rank, not of one for each position.
        num_jobs: ranks that work at a time.
    """

    target: BuildTarget
    real_tensors: bool = False
    every_rank: bool = False
    num_jobs: int = 1


def build(
    config: Config,
    options: BuildOptions,
    *,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> BuildReport:
    """Build the partitions of all ranks of a launch.

    Args:
        config: the launch; its store gets them, or its cache directory where it has none.
        options: how.
        listener: is told what happens; None for nobody.
        launcher: runs the ranks that are built; None for processes of this machine.

    Raises:
        BadArgument: what was asked for cannot be built here.
        LaunchFailed: a stage failed on at least one rank.
        BuildFailed: ranks that should be alike are not.
        cache_store.errors.StoreError: store or cache directory cannot be used.
    """
    check_target(config, options.target, real_tensors=options.real_tensors)
    started = utc_now()
    store = _open_store(config)
    ranks = built_ranks(config, every_rank=options.every_rank)
    launcher = launcher or launcher_for(config, options, ranks)
    alone = config.model_copy(update={"store": None})
    stages = Stages(alone, launcher, listener or silence, ranks=ranks)
    try:
        if store is not None:
            fetch(stages, store, config, options)
        built = replace(_build_ranks(stages, options), audits=tuple(stages.state.audits))
        kept = _keep(stages, store, config, options, built)
        report = assemble(stages, config, target=options.target, built=built, kept=kept, started=started)
        stages.close()
    finally:
        with undisturbed():
            launcher.stop()
    return report


def launcher_for(config: Config, options: BuildOptions, ranks: tuple[int, ...]) -> Launcher:
    """Processes of this machine for some ranks."""
    workload = config.workload
    assert isinstance(workload, EntrypointWorkload)  # noqa: S101 - `check_target` lets nothing else pass
    module = workload.entrypoint.partition(":")[0]
    return OfflineLauncher(ranks, num_jobs=options.num_jobs, module=module)


def _open_store(config: Config) -> Store | None:
    """The config's store, which must be there and writable: a build has nobody else to tell."""
    from warmrank.orchestrator.store.stores import access, is_writable, may_publish

    if config.store is None:
        return None
    found = access(config.store)
    if found.store is None:
        msg = f"the store is away: {found.tiers[-1].reason}; build without it: --set store=null"
        raise BadArgument(msg)
    if not is_writable(found.config.tiers):
        msg = "the store is read-only (mode ro in every place), so nothing can be built into it"
        raise BadArgument(msg)
    if not may_publish(found.config.trust):
        msg = (
            "trust.policy is require, and store.trust.signing_key is not set, so nothing can be built into "
            "the store; make a key (warmrank keys generate) and name it there"
        )
        raise BadArgument(msg)
    return found.store


def fetch(stages: Stages, store: Store, config: Config, options: BuildOptions) -> None:
    """Bring what the store has of the ranks that are built into the cache directory."""
    with stages.stage("fetch"):
        wanted = Wanted(
            launch_key=launch_key(config),
            environment=options.target.environment,
            world_size=config.ranks,
            ranks=stages.ranks,
        )
        for fault in seed(store, wanted, config.cache_dir).faults:
            stages.problem(f"store: {fault}")


def _build_ranks(stages: Stages, options: BuildOptions) -> Built:
    """The stages of a launch that need no device, on the ranks that are built."""
    config = stages.config
    probes, left_out = probed(stages, options)
    if not any(probes.values()):
        reasons = "; ".join(f"{item.function}: {item.reason}" for item in left_out)
        msg = f"nothing can be built offline ({reasons or 'the workload calls no cached function'})"
        raise BadArgument(msg)
    ledger = settle_all(stages, probes, no_compile=False)
    bound = frozenset(itertools.chain.from_iterable(stages.ask_all("load", OfflineHost.rank_bound).values()))
    if len(stages.ranks) < config.ranks and (found := differences(config, probes, ledger, bound)):
        witness = max(stages.ranks)
        raise BuildFailed(witness, model_rank(witness, config), found)
    return Built(
        probes=probes,
        ledger=ledger,
        manifests=stages.ask_all("commit", OfflineHost.manifest),
        left_out=left_out,
        bound=bound,
    )


def probed(
    stages: Stages, options: BuildOptions, *, kernels: bool = True
) -> tuple[Probes, tuple[LeftOut, ...]]:
    """Bring the ranks up, build their models and probe; what each found, and what is left out.

    Args:
        stages: of the build.
        options: how.
        kernels: functions are compiled later; otherwise they are only traced.
    """
    with stages.stage("start"):
        stages.start()
        openings = {
            rank: (
                OfflineRankInit(
                    config=stages.config,
                    rank=rank,
                    environment=options.target.environment,
                    real_tensors=options.real_tensors,
                    kernels=kernels,
                ),
            )
            for rank in stages.ranks
        }
        stages.ask("start", OfflineHost.open, openings)
    probes = steps.build_and_probe(stages)
    everyone = dict.fromkeys(stages.ranks, ())
    left_out = stages.ask("build", OfflineHost.left_out, everyone, is_work=False).values()
    return probes, tuple(dict.fromkeys(itertools.chain.from_iterable(left_out)))


def _keep(stages: Stages, store: Store | None, config: Config, options: BuildOptions, built: Built) -> Kept:
    """Put all partitions into the store, or lay them out in the cache directory where there is none."""
    root = config.cache_dir
    with stages.stage("commit"):
        files = {
            entry.sha256: entry.local_path(root)
            for manifest in built.manifests.values()
            for entry in manifest.artifacts
        }
        manifests = [_manifest_of(rank, config, built) for rank in range(config.ranks)]
        if store is None:
            return Kept(num_new=_num_laid_out(manifests, files, root) + _num_made(built))
        return _publish(store, config, options, manifests, files)


def _manifest_of(rank: int, config: Config, built: Built) -> PartitionManifest:
    own = built.manifests.get(rank)
    if own is not None:
        return own
    return replica(built.manifests[model_rank(rank, config)], rank, without=built.bound)


def _num_made(built: Built) -> int:
    """Partitions of the ranks that were built which they did not have before."""
    return len({rank for (rank, _), result in built.ledger.items() if result.outcome != "loaded"})


def _num_laid_out(manifests: list[PartitionManifest], files: Mapping[str, Path], root: Path) -> int:
    return sum(replicate([manifest], files, root) > 0 for manifest in manifests)


def _publish(
    store: Store,
    config: Config,
    options: BuildOptions,
    manifests: list[PartitionManifest],
    files: Mapping[str, Path],
) -> Kept:
    key = launch_key(config)
    reports = store.publish_partitions(key, manifests, files, config.cache_dir)
    record = LaunchRecord(
        launch_key=key,
        identity=identity(config),
        world_size=config.ranks,
        environment=dict(options.target.environment),
        partitions=tuple(report.ref for report in reports),
        created=utc_now(),
    )
    return Kept(
        num_new=sum(report.created for report in reports),
        bytes_new=sum(report.bytes_new for report in reports),
        record=store.commit_launch(record),
        conflicts=tuple(dict.fromkeys(name for report in reports for name in report.conflicts)),
    )


Probes = Mapping[int, tuple[FunctionProbe, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What the ranks that were built ended with."""

    probes: Probes
    ledger: Ledger
    manifests: Mapping[int, PartitionManifest]
    left_out: tuple[LeftOut, ...]
    bound: frozenset[str]
    audits: tuple[AuditReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What became of all partitions."""

    num_new: int
    bytes_new: int = 0
    record: str = ""
    conflicts: tuple[str, ...] = ()


def assemble(
    stages: Stages, config: Config, *, target: BuildTarget, built: Built, kept: Kept, started: str
) -> BuildReport:
    """The report of a build that has done its work."""
    for name in kept.conflicts:
        stages.problem(f"nondeterministic: {name} compiled to other bytes than the store holds, which stay")
    classes = classes_of(config, built.probes, built.ledger, built.bound)
    return BuildReport(
        schema_version=BUILD_SCHEMA_VERSION,
        name=config.name,
        launch_key=launch_key(config),
        identity=identity(config),
        environment=dict(target.environment),
        environment_source=target.source,
        world_size=config.ranks,
        parallel=config.parallel.sizes(),
        device=config.device,
        started=started,
        cache_dir=str(config.cache_dir),
        store=config.store.location if config.store else "",
        record=kept.record,
        classes=classes,
        not_built=_not_built(config, stages, built),
        assumed=_assumed(config, stages),
        stages=stages.report(),
        totals=_totals(stages, config, classes, kept),
        problems=stages.problems,
        audits=built.audits,
    )


def _not_built(config: Config, stages: Stages, built: Built) -> tuple[NotBuilt, ...]:
    found = [NotBuilt(what=item.function, reason=item.reason) for item in built.left_out]
    if len(stages.ranks) < config.ranks:
        found += [
            NotBuilt(
                what=f"{name} on ranks that got copies",
                reason="its code asks for its rank, so each rank has its own; --every-rank builds them all",
            )
            for name in sorted(built.bound)
        ]
    return (*found, *(NotBuilt(what=what, reason=reason) for what, reason in ALWAYS_LATER))


def _assumed(config: Config, stages: Stages) -> tuple[str, ...]:
    if len(stages.ranks) == config.ranks:
        return ()
    built = ranks_text(stages.ranks)
    alike = "ranks that differ in their data-parallel position only are alike"
    return (f"{alike}: built were {built}; a launch checks the guards on every rank",)


def _totals(stages: Stages, config: Config, classes: tuple[ClassReport, ...], kept: Kept) -> BuildTotals:
    compiled = [item for item in classes if item.outcome == "compiled"]
    artifacts = {item.digest: item.size_bytes for item in classes}
    beyond_s = sum(stage.seconds for stage in stages.report() if stage.stage not in ("compile", "start"))
    return BuildTotals(
        num_classes=len(classes),
        num_compiled=len(compiled),
        num_artifacts=len(artifacts),
        artifact_bytes=sum(artifacts.values()),
        num_built_ranks=len(stages.ranks),
        num_partitions_new=kept.num_new,
        published_bytes=kept.bytes_new,
        compile_s=sum(item.trace_s + item.compile_s for item in compiled),
        wall_s=stages.wall_s(),
        rank_ms=beyond_s / config.ranks * 1000,
    )
