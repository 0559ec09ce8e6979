"""Puts the report of an offline build together from what its stages brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.orchestrator.build.report import (
    ALWAYS_LATER,
    BUILD_SCHEMA_VERSION,
    BuildReport,
    BuildTotals,
    ClassReport,
    NotBuilt,
    classes_of,
)
from warmrank.orchestrator.build.target import BuildTarget
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.launch.events import AuditReport
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.rounds import Ledger
from warmrank.orchestrator.launch.stages import Stages
from warmrank.worker.results import FunctionProbe, LeftOut

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
