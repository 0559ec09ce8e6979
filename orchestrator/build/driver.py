"""Offline: `warmrank build` makes the partitions of all ranks of a launch, `warmrank audit` traces them anew.

The stages are those of a launch that need no device; the driver alone uses the store. Manifests come after
blobs and the launch record last, so a build that is stopped leaves the store without a new launch. An audit
compiles and publishes nothing; what the store holds is read into a directory of its own, under the config's
trust.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from warmrank.cache_store.cache_dir.local import is_companion_name
from warmrank.cache_store.fetch.fetch import replicate
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, utc_now
from warmrank.cache_store.seed import Wanted, pick_launches, seed
from warmrank.cache_store.store import Store
from warmrank.cache_store.text import grouped
from warmrank.orchestrator.build.plan import (
    ALWAYS_LATER,
    AUDIT_SCHEMA_VERSION,
    BUILD_SCHEMA_VERSION,
    BuildReport,
    BuildTarget,
    BuildTotals,
    CacheAudit,
    ClassReport,
    NotCompared,
    RetraceReport,
    built_ranks,
    check_target,
    differences,
    model_rank,
    replica,
)
from warmrank.orchestrator.build.ranks import OfflineHost, OfflineLauncher, offline_placement
from warmrank.orchestrator.config.models import Config, identity, launch_key
from warmrank.orchestrator.errors import BadArgument, BuildFailed, ranks_text
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.gang.rank_host import init_of
from warmrank.orchestrator.launch.events import Listener, silence
from warmrank.orchestrator.launch.rounds import Ledger, settle_all
from warmrank.orchestrator.launch.run import Run
from warmrank.orchestrator.launch.stages import build_and_probe
from warmrank.orchestrator.signals import undisturbed
from warmrank.worker.rank.manifests import unpacked
from warmrank.worker.rank.offline import OfflineRank
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionProbe, LeftOut, Retraced, RetraceOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build, or of an audit."""

    target: BuildTarget
    real_tensors: bool = False  # with memory and values, on the CPU
    every_rank: bool = False  # the model of every rank, not of one for each position
    num_jobs: int = 1  # ranks that work at a time


@contextlib.contextmanager
def _offline(
    config: Config, options: BuildOptions, listener: Listener | None, launcher: Launcher | None
) -> Iterator[Run]:
    """The stages of the ranks that are built; without a launcher, they are processes of this machine."""
    ranks = built_ranks(config, every_rank=options.every_rank)
    launcher = launcher or OfflineLauncher(config, ranks, num_jobs=options.num_jobs)
    stages = Run(config.model_copy(update={"store": None}), launcher, listener or silence, ranks=ranks)
    try:
        yield stages
        stages.close()
    finally:
        with undisturbed():
            launcher.stop()


def build(
    config: Config,
    options: BuildOptions,
    *,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> BuildReport:
    """Build the partitions of all ranks of a launch: into its store, or, without one, its cache directory.

    Raises:
        BadArgument: what was asked for cannot be built here.
        LaunchFailed: a stage failed on at least one rank.
        BuildFailed: ranks that should be alike are not.
        cache_store.errors.StoreError: store or cache directory cannot be used.
    """
    check_target(config, options.target, real_tensors=options.real_tensors)
    started = utc_now()
    store = _open_store(config)
    with _offline(config, options, listener, launcher) as stages:
        if store is not None:
            _fetch(stages, store, config, options)
        made = _Build(stages, config, options)
        made.build()
        made.keep(store)
        return made.report(started)


def _open_store(config: Config) -> Store | None:
    """The config's store, which must be there and writable: a build has nobody else to tell."""
    from warmrank.orchestrator.stores import access, is_writable, may_publish

    if config.store is None:
        return None
    found = access(config.store)
    farthest = found.tiers[-1] if found.store is None else found.store.farthest
    if farthest.state == "away":
        msg = f"the store is away: {farthest.reason}; build without it: --set store=null"
        raise BadArgument(msg)
    assert found.store is not None  # noqa: S101 - some place of it is there
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


def _fetch(stages: Run, store: Store, config: Config, options: BuildOptions) -> None:
    """Bring what the store has of the ranks that are built into the stages' cache directory."""
    with stages.stage("fetch"):
        wanted = Wanted(
            launch_key=launch_key(config),
            environment=options.target.environment,
            world_size=config.ranks,
            ranks=stages.ranks,
        )
        for fault in seed(store, wanted, stages.config.cache_dir).faults:
            stages.problem(f"store: {fault}")


def _probed(
    stages: Run, options: BuildOptions, *, kernels: bool = True
) -> tuple[Mapping[int, tuple[FunctionProbe, ...]], tuple[LeftOut, ...]]:
    """Bring the ranks up, build their models and probe; what each found, and what is left out.

    Without ``kernels``, functions are only traced later, not compiled.
    """
    with stages.stage("start"):
        stages.start()
        rest = options.target.environment, options.real_tensors, kernels
        placements = {rank: offline_placement(stages.config, rank) for rank in stages.ranks}
        inits = {rank: (init_of(stages.config, placement), *rest) for rank, placement in placements.items()}
        stages.ask("start", OfflineHost.open, inits)
    probes = build_and_probe(stages)
    everyone = dict.fromkeys(stages.ranks, ())
    left_out = stages.ask("build", OfflineRank.left_out, everyone, is_work=False).values()
    return probes, tuple(dict.fromkeys(itertools.chain.from_iterable(left_out)))


@dataclass(slots=True)
class _Build:
    """Results of the ranks that are built, on their way into the store."""

    stages: Run
    config: Config
    options: BuildOptions
    probes: Mapping[int, tuple[FunctionProbe, ...]] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    ledger: Ledger = field(default_factory=dict)
    bound: frozenset[str] = frozenset()  # functions that hold on one rank alone
    manifests: Mapping[int, PartitionManifest] = field(default_factory=dict)
    num_new: int = 0
    bytes_new: int = 0
    record: str = ""

    def build(self) -> None:
        """Go through the stages of a launch that need no device, on the ranks that are built."""
        stages, config = self.stages, self.config
        self.probes, self.left_out = _probed(stages, self.options)
        if not any(self.probes.values()):
            reasons = "; ".join(f"{item.function}: {item.reason}" for item in self.left_out)
            msg = f"nothing can be built offline ({reasons or 'the workload calls no cached function'})"
            raise BadArgument(msg)
        self.ledger = settle_all(stages, self.probes, no_compile=False)
        bound = stages.ask_all("load", OfflineRank.rank_bound).values()
        self.bound = frozenset(itertools.chain.from_iterable(bound))
        if len(stages.ranks) < config.ranks and (
            found := differences(config, self.probes, self.ledger, self.bound)
        ):
            witness = max(stages.ranks)
            head = (
                f"rank {witness} differs from rank {model_rank(witness, config)} in its data-parallel "
                "position only, and yet asks for something else; build with --every-rank, or do not let the "
                "model depend on that position:"
            )
            raise BuildFailed("\n".join([head, *(f"  {line}" for line in found)]))
        partitions = stages.ask_all("commit", RankWorker.partition)
        self.manifests = {rank: unpacked(part.manifest) for rank, part in partitions.items()}

    def keep(self, store: Store | None) -> None:
        """Put all partitions into the store, or lay them out in the cache directory where there is none."""
        config, root = self.config, self.config.cache_dir
        with self.stages.stage("commit"):
            entries = itertools.chain.from_iterable(made.artifacts for made in self.manifests.values())
            files = {entry.sha256: entry.local_path(root) for entry in entries}
            manifests = [
                self.manifests.get(rank)
                or replica(self.manifests[model_rank(rank, config)], rank, without=self.bound)
                for rank in range(config.ranks)
            ]
            if store is not None:
                self._publish(store, manifests, files)
                return
            made_here = {rank for (rank, _), result in self.ledger.items() if result.outcome != "loaded"}
            self.num_new = replicate(manifests, files, root) + len(made_here)

    def _publish(self, store: Store, manifests: list[PartitionManifest], files: Mapping[str, Path]) -> None:
        config = self.config
        reports = store.publish_partitions(launch_key(config), manifests, files, config.cache_dir)
        self.num_new = sum(report.created for report in reports)
        self.bytes_new = sum(report.bytes_new for report in reports)
        self.record = store.commit_launch(
            LaunchRecord(
                launch_key=launch_key(config),
                identity=identity(config),
                world_size=config.ranks,
                environment=dict(self.options.target.environment),
                partitions=tuple(report.ref for report in reports),
                created=utc_now(),
            )
        )
        for name in dict.fromkeys(name for report in reports for name in report.conflicts):
            self.stages.problem(
                f"nondeterministic: {name} compiled to other bytes than the store holds, which stay"
            )

    def report(self, started: str) -> BuildReport:
        """The report of a build that has done its work."""
        config, stages, target = self.config, self.stages, self.options.target
        classes = self._classes()
        not_built = {item.function: item.reason for item in self.left_out}
        assumed: tuple[str, ...] = ()
        if len(stages.ranks) < config.ranks:
            reason = "its code asks for its rank, so each rank has its own; --every-rank builds them all"
            not_built |= {f"{name} on ranks that got copies": reason for name in sorted(self.bound)}
            alike = "ranks that differ in their data-parallel position only are alike"
            built = ranks_text(stages.ranks)
            assumed = (f"{alike}: built were {built}; a launch checks the guards on every rank",)
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
            record=self.record,
            classes=classes,
            not_built=not_built | ALWAYS_LATER,
            assumed=assumed,
            stages=stages.report(),
            totals=self._totals(classes),
            problems=stages.problems,
            audits=tuple(stages.state.audits),
        )

    def _classes(self) -> tuple[ClassReport, ...]:
        """Artifacts, each with the ranks that have it."""
        config = self.config
        keys = {(rank, each.function): each.request_key for rank, own in self.probes.items() for each in own}
        members = grouped(((name, self.ledger[rank, name].digest), rank) for rank, name in keys)
        # The rank that was built for each: itself, or the one that stands for it.
        every = range(config.ranks)
        built = Counter(rank if rank in self.probes else model_rank(rank, config) for rank in every)
        found = []
        for (function, digest), ranks in members.items():
            compiled = [rank for rank in ranks if self.ledger[rank, function].outcome == "compiled"]
            leader = (compiled or ranks)[0]
            result = self.ledger[leader, function]
            found.append(
                ClassReport(
                    function=function,
                    request_key=keys[leader, function],
                    digest=digest,
                    size_bytes=result.size_bytes,
                    outcome=result.outcome,
                    leader=leader,
                    num_ranks=len(ranks) if function in self.bound else sum(built[rank] for rank in ranks),
                    trace_s=result.seconds.trace_s if compiled else 0.0,
                    compile_s=result.seconds.compile_s if compiled else 0.0,
                )
            )
        return tuple(found)

    def _totals(self, classes: tuple[ClassReport, ...]) -> BuildTotals:
        artifacts = {item.digest: item.size_bytes for item in classes}
        spent = self.stages.report()
        beyond_s = sum(stage.seconds for stage in spent if stage.stage not in ("compile", "start"))
        return BuildTotals(
            num_classes=len(classes),
            num_compiled=sum(item.outcome == "compiled" for item in classes),
            num_artifacts=len(artifacts),
            artifact_bytes=sum(artifacts.values()),
            num_built_ranks=len(self.stages.ranks),
            num_partitions_new=self.num_new,
            published_bytes=self.bytes_new,
            compile_s=sum(item.trace_s + item.compile_s for item in classes),
            wall_s=self.stages.wall_s(),
            rank_ms=beyond_s / self.config.ranks * 1000,
        )


def audit_cache(
    config: Config,
    options: BuildOptions,
    store: Store | None,
    *,
    listener: Listener | None = None,
) -> CacheAudit:
    """Trace again what is stored for a launch, and compare.

    Without a store (the config names none, or there is none yet), the config's cache directory is looked at.

    Raises:
        BadArgument: the workload cannot be traced here.
        LaunchFailed: a rank does not come up.
        cache_store.errors.StoreError: store or cache directory cannot be used.
    """
    check_target(config, options.target, real_tensors=options.real_tensors)
    started = utc_now()
    stored: list[list[PartitionManifest]] = []
    with tempfile.TemporaryDirectory(prefix="warmrank-audit-") as scratch:
        root = Path(scratch) if config.store is not None else config.cache_dir
        here = config.model_copy(update={"cache_dir": root})
        with _offline(here, options, listener, None) as stages:
            if store is not None:
                _fetch(stages, store, config, options)
            probes, left_out = _probed(stages, options, kernels=False)
            asked = {rank: (tuple(each.function for each in own),) for rank, own in probes.items() if own}
            with stages.stage("compile", tuple(asked)):
                found = stages.ask("compile", OfflineHost.retrace, asked)
            if store is not None:
                stored = _manifests(stages, store, config, options)
    functions = _alike(found)
    others = (
        *(
            NotCompared(function=item.function, digest="", ranks=stages.ranks, reason=item.reason)
            for item in left_out
        ),
        *min(
            (_unseen(manifests, found, is_all=len(stages.ranks) == config.ranks) for manifests in stored),
            key=len,
            default=(),
        ),
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
        num_retraced_ranks=len(stages.ranks),
        started=started,
        functions=functions,
        not_compared=others,
        problems=stages.problems,
        wall_s=stages.wall_s(),
    )


def _manifests(
    stages: Run, store: Store, config: Config, options: BuildOptions
) -> list[list[PartitionManifest]]:
    """The partitions of each record that a launch would take, those of its own size where there are any."""
    environment = options.target.environment
    picked = pick_launches(
        store.newest_launches(launch_key(config)), environment=environment, world_size=config.ranks
    )
    own = [stored.record for stored in picked if stored.record.world_size == config.ranks]
    records = own or [stored.record for stored in picked]
    for problem in store.problems:
        stages.problem(f"store: {problem}")
    if not records:
        stages.problem("the store holds no launch of this config for this environment")
    return [
        [
            store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
            for ref in sorted(record.made_in(environment), key=lambda ref: ref.rank)
        ]
        for record in records
    ]


def _alike(found: Mapping[int, Iterable[Retraced]]) -> tuple[RetraceReport, ...]:
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
    manifests: Iterable[PartitionManifest], found: Mapping[int, Iterable[Retraced]], *, is_all: bool
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
    reason = "no rank that was traced here would load it for a call of the workload " + (
        "as it begins; it serves a later one, such as the check's" if is_all else "(--every-rank traces all)"
    )
    return tuple(
        NotCompared(function=function, digest=digest, ranks=tuple(members), reason=reason)
        for (function, digest), members in ranks.items()
    )
