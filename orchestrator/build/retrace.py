"""`warmrank audit`: traces anew what a store or a cache directory holds for a launch, and compares.

The ranks are those of an offline build, and so is all that they need; nothing is compiled, and nothing is
published. What the store holds is read into a directory of its own, under the config's trust.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from warmrank.cache_store.cache_dir.local import is_companion_name
from warmrank.cache_store.records.manifest import PartitionManifest, utc_now
from warmrank.cache_store.seed import pick_launches
from warmrank.cache_store.store import Store
from warmrank.orchestrator.build.driver import BuildOptions, fetch, probed
from warmrank.orchestrator.build.plan import built_ranks, check_target
from warmrank.orchestrator.build.ranks import OfflineHost, OfflineLauncher
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.launch.events import Listener, silence
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.signals import undisturbed
from warmrank.orchestrator.text import grouped
from warmrank.worker.results import Retraced, RetraceOutcome

AUDIT_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetraceReport:
    """One artifact, and the ranks that traced its function again with one outcome."""

    function: str
    ranks: tuple[int, ...]
    outcome: RetraceOutcome
    reason: str  # the first difference, or why nothing could be compared
    digest: str
    seconds: float  # summed over ranks
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """An artifact of the stored launch, in the partitions of some ranks, that no rank here traced again."""

    function: str
    digest: str
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAudit:
    """Outcome of an audit of a store or a cache directory; names as in a launch's report."""

    schema_version: int
    outcome: str  # fresh, stale (something differs) or incomplete (not all compared)
    name: str
    launch_key: str
    source: str  # the store or cache directory
    environment_source: str
    world_size: int
    num_retraced_ranks: int
    started: str
    functions: tuple[RetraceReport, ...]  # traced again, or should have been
    not_compared: tuple[NotCompared, ...]  # what else is stored, or left out
    problems: tuple[str, ...]
    wall_s: float


def audit_cache(
    config: Config,
    options: BuildOptions,
    store: Store | None,
    *,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> CacheAudit:
    """Trace again what is stored for a launch, and compare.

    Without a store (the config names none, or there is none yet), the config's cache directory is looked at.
    Without a launcher, the ranks are processes of this machine.

    Raises:
        BadArgument: the workload cannot be traced here.
        LaunchFailed: a rank does not come up.
        cache_store.errors.StoreError: store or cache directory cannot be used.
    """
    check_target(config, options.target, real_tensors=options.real_tensors)
    started = utc_now()
    ranks = built_ranks(config, every_rank=options.every_rank)
    stored: list[list[PartitionManifest]] = []
    with tempfile.TemporaryDirectory(prefix="warmrank-audit-") as scratch:
        root = Path(scratch) if config.store is not None else config.cache_dir
        here = config.model_copy(update={"cache_dir": root, "store": None})
        launcher = launcher or OfflineLauncher(here, ranks, num_jobs=options.num_jobs)
        stages = Stages(here, launcher, listener or silence, ranks=ranks)
        try:
            if store is not None:
                fetch(stages, store, config.model_copy(update={"cache_dir": root}), options)
            probes, left_out = probed(stages, options, kernels=False)
            asked = {rank: (tuple(each.function for each in own),) for rank, own in probes.items() if own}
            with stages.stage("compile", tuple(asked)):
                found = stages.ask("compile", OfflineHost.retrace, asked)
            if store is not None:
                stored = _manifests(stages, store, config, options)
            stages.close()
        finally:
            with undisturbed():
                launcher.stop()
    functions = _grouped(found)
    others = (
        *(
            NotCompared(function=item.function, digest="", ranks=ranks, reason=item.reason)
            for item in left_out
        ),
        *min((_unseen(manifests, found) for manifests in stored), key=len, default=()),
    )
    outcomes = {item.outcome for item in functions}
    is_fresh = outcomes == {"equal"} and not others
    return CacheAudit(
        schema_version=AUDIT_SCHEMA_VERSION,
        outcome="stale" if "differs" in outcomes else "fresh" if is_fresh else "incomplete",
        name=config.name,
        launch_key=launch_key(config),
        source=config.store.location if config.store else str(config.cache_dir),
        environment_source=options.target.source,
        world_size=config.ranks,
        num_retraced_ranks=len(ranks),
        started=started,
        functions=functions,
        not_compared=others,
        problems=stages.problems,
        wall_s=stages.wall_s(),
    )


def _manifests(
    stages: Stages, store: Store, config: Config, options: BuildOptions
) -> list[list[PartitionManifest]]:
    """The partitions of each record that a launch would take, those of its own size where there are any."""
    environment = options.target.environment
    picked = pick_launches(
        store.launch_summaries(launch_key(config)), environment=environment, world_size=config.ranks
    )
    own = [item for item in picked if item.world_size == config.ranks]
    records = [taken.record for taken in store.take_launches(own or picked)]
    if not records:
        stages.problem("the store holds no launch of this config for this environment")
    return [
        [
            store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
            for ref in sorted(record.made_in(environment), key=lambda ref: ref.rank)
        ]
        for record in records
    ]


def _grouped(found: Mapping[int, Iterable[Retraced]]) -> tuple[RetraceReport, ...]:
    """Equal outcomes of one artifact together; one that several calls use is equal if one call's trace is."""
    proven = {
        (rank, item.digest) for rank, items in found.items() for item in items if item.outcome == "equal"
    }
    alike: dict[tuple[str, str, RetraceOutcome, str], list[tuple[int, Retraced]]] = {}
    for rank, items in found.items():
        for item in items:
            if item.outcome == "differs" and (rank, item.digest) in proven:
                item = replace(item, outcome="equal", reason="")  # noqa: PLW2901 - the same, corrected
            key = (item.function, item.digest, item.outcome, item.reason)
            alike.setdefault(key, []).append((rank, item))
    return tuple(
        RetraceReport(
            function=function,
            ranks=tuple(sorted(rank for rank, _ in members)),
            outcome=outcome,
            reason=reason,
            digest=digest,
            seconds=sum(item.seconds for _, item in members),
            cpu_s=sum(item.cpu_s for _, item in members),
        )
        for (function, digest, outcome, reason), members in alike.items()
    )


def _unseen(
    manifests: Iterable[PartitionManifest], found: Mapping[int, Iterable[Retraced]]
) -> tuple[NotCompared, ...]:
    """The artifacts of a record's partitions that were not traced again."""
    seen = {item.digest for items in found.values() for item in items}
    ranks = grouped(
        ((entry.function, entry.sha256), manifest.rank)
        for manifest in manifests
        for entry in manifest.artifacts
        if entry.scope == "rank" and entry.sha256 not in seen
        if not is_companion_name(Path(entry.path).name)
    )
    reason = "no rank that was traced here would load it for a call of the workload (--every-rank traces all)"
    return tuple(
        NotCompared(function=function, digest=digest, ranks=tuple(members), reason=reason)
        for (function, digest), members in ranks.items()
    )
