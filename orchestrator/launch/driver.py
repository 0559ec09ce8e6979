"""The driver of a launch: attempts, each a gang that goes through the stages; only here is it committed.

The store may be away, or fall silent on the way: the launch then goes on without it, leaves on each node's
disk what is to be published later (partitions on the node of each rank, what the launch is on the driver's),
and says so in its report. A launch record is created last, by the driver alone, when every rank's manifest
is in the store: a launch is whole in the store or absent. What an attempt compiled stays on its nodes' disks
and, as blobs, in the store, so that the next one compiles what is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from filelock import Timeout

from warmrank.cache_store.cache_dir.single_flight import LOCKS, lock_in
from warmrank.cache_store.errors import StoreError, StoreUnavailable, UnusableCache
from warmrank.cache_store.publish_pending import add_launch
from warmrank.cache_store.records.manifest import environments_of, utc_now
from warmrank.cache_store.text import grouped
from warmrank.orchestrator.config.models import Retries, ScriptWorkload, identity, launch_key
from warmrank.orchestrator.config.reading import Config, require_workload
from warmrank.orchestrator.errors import (
    Budget,
    CannotStart,
    LaunchFailed,
    OrchestratorError,
    in_words,
    ranks_text,
)
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.orchestrator.gang.ray_session import way_in_now
from warmrank.orchestrator.launch import stages
from warmrank.orchestrator.launch.events import Listener, Timeline, silence
from warmrank.orchestrator.launch.report import (
    SCHEMA_VERSION,
    Failure,
    FunctionReport,
    NodePublish,
    Nondeterministic,
    RankReport,
    Report,
    totals,
)
from warmrank.orchestrator.launch.rounds import Compiling, settle_all
from warmrank.orchestrator.launch.run import Run
from warmrank.orchestrator.nodes import Gang
from warmrank.orchestrator.signals import held_back, named, undisturbed
from warmrank.orchestrator.stores import Access, is_writable, may_publish, waiting_launch
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import PlannedCapture, Published, Verification, function_of_unit
from warmrank.worker.settings import settings

logger = logging.getLogger(__name__)


class Launch:
    """One launch, from start to commit, in as many attempts as it takes and may take.

    A miss is an error with ``no_compile``, in the config or as `WARMRANK_NO_COMPILE`, too. Without a
    launcher, ranks run on Ray.
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
        self._config = config
        self._no_compile = no_compile or config.no_compile or settings().no_compile
        self._launcher = launcher or ray_launcher(config)
        self._run = Run(config, self._launcher, listener or silence)
        self._avoid: tuple[Compiling, ...] = ()
        self._blank = Report(
            schema_version=SCHEMA_VERSION,
            outcome="warm",
            exit_code=0,
            failure=None,
            timeline=Timeline(),
            name=config.name,
            launch_key=launch_key(config),
            identity=identity(config),
            environment={},
            other_environments=(),
            world_size=config.ranks,
            parallel=config.parallel.sizes(),
            started=utc_now(),
            cache_dir=str(config.cache_dir),
            store=config.store.location if config.store else "",
            tiers=(),
            record="",
            ranks=(),
            fetches=(),
            publishes=(),
            nondeterministic=(),
            queued_on=(),
            stages=(),
            totals=totals(()),
            problems=(),
        )
        self._forget()

    def _forget(self) -> None:
        """Forget what is of an attempt."""
        self._report = self._blank  # without what is read off at the end
        self._probes: stages.Probes = {}
        self._results: stages.Results = {}
        self._checks: dict[int, Verification] = {}

    def run(self) -> Report:
        """Launch until every rank is warm.

        Raises:
            LaunchFailed: a stage failed on at least one rank, and may not be tried again.
            CompileForbidden: compiling is forbidden and something missed.
            CannotStart: the ranks could not be started.
            cache_store.errors.StoreError: the store's place holds no usable store, or a key file is unusable.
        """
        try:
            access = stages.open_store(self._run)
            self._blank = replace(self._blank, tiers=access.found() if access is not None else ())
            self._forget()
            with turn(self._config):
                return self._attempts(access)
        finally:
            with undisturbed():
                self._launcher.stop()

    def failed(self, error: BaseException, *, exit_code: int) -> Report:
        """The report of a launch whose `run` ended with this error, as far as it came."""
        in_order = {(rank, probe.function): None for rank, own in self._probes.items() for probe in own}
        told = {**in_order, **self._run.state.results}
        known = grouped((rank, found) for (rank, _), found in told.items() if found and found.ok)
        self._results = {rank: tuple(own) for rank, own in known.items()}
        self._checks = {}
        report = self._whole(self._report)
        failure = Failure(kind=type(error).__name__, message=in_words(error), stage=self._run.running)
        if isinstance(error, LaunchFailed):
            failure = replace(failure, stage=error.stage, causes=error.causes, silent=error.silent)
            if not error.logs:
                report = replace(report, ranks=tuple(replace(rank, log="") for rank in report.ranks))
        return replace(report, outcome="failed", exit_code=exit_code, failure=failure)

    def _attempts(self, access: Access | None) -> Report:
        spent: Counter[Budget] = Counter()
        reason = ""
        while True:
            self._run.begin_attempt(reason)
            self._forget()
            try:
                with named():
                    return self._attempt(access)
            except (LaunchFailed, CannotStart) as error:
                self._avoid += error.compiling if isinstance(error, LaunchFailed) else ()
                reason = reason_for_another(error, self._config.retries, spent)
                if isinstance(error, CannotStart):
                    error.is_lost |= spent["node"] > 0
                self._run.attempt_failed(error, is_last=not reason)
                if not reason:
                    raise
            except BaseException as error:
                self._run.attempt_failed(error, is_last=True)
                raise
            with held_back():
                self._launcher.release()

    def _attempt(self, access: Access | None) -> Report:
        run = self._run
        found = environments_of(stages.start(run, access, no_compile=self._no_compile))
        self._report = replace(self._report, environment=found.environment, other_environments=found.others)
        captures: tuple[PlannedCapture, ...] = ()
        if access is not None and access.store is not None:
            fetches, captures = stages.fetch(run)
            self._report = replace(self._report, fetches=fetches)
        if isinstance(self._config.workload, ScriptWorkload):
            self._results = stages.run_script(run)  # each rank decides for itself
        else:
            self._warm_up(captures)
        report = self._report
        if access is not None:
            results = self._results.values()
            is_new = any(result.outcome != "loaded" for own in results for result in own)
            report = commit(report, run, access, is_new=is_new)
            report = replace(report, tiers=access.found(), node_artifacts=stages.node_artifacts(run))
        report = self._whole(report)
        run.close()
        return report

    def _warm_up(self, planned: tuple[PlannedCapture, ...]) -> None:
        """Bring every function of every rank to a captured, called and verified artifact."""
        run, no_compile = self._run, self._no_compile
        probes = self._probes = stages.build_and_probe(run)
        # A call may need what one before it leaves behind: it gets another chance when its turn comes.
        later = {(rank, found.function) for rank, own in probes.items() for found in own[1:]}
        ledger = settle_all(run, probes, no_compile=no_compile, avoid=self._avoid, may_wait=later)
        stages.capture(run, ledger, planned)
        self._probes = stages.run_calls(run, probes, ledger, no_compile=no_compile)
        self._checks, extra = stages.verify(run)
        self._results = {
            rank: (*(ledger[rank, found.function] for found in own), *extra[rank])
            for rank, own in sorted(self._probes.items())
        }

    def _whole(self, report: Report) -> Report:
        """The report with what is known of the ranks and of the timeline by now."""
        run = self._run
        ranks = tuple(
            RankReport(
                rank=placement.rank,
                host=placement.host,
                node_rank=placement.node_rank,
                local_rank=placement.local_rank,
                pid=placement.pid,
                log=run.gang.log_of(placement.rank),
                functions=self._functions(placement.rank),
                verification=self._checks.get(placement.rank),
            )
            for placement in run.gang.placements
        )
        return replace(
            report,
            timeline=run.state.timeline(now_s=run.wall_s()),
            ranks=ranks,
            stages=run.report(),
            totals=totals(
                ranks,
                fetches=report.fetches,
                publishes=report.publishes,
                nondeterministic=report.nondeterministic,
                wall_s=run.wall_s(),
            ),
            problems=run.problems,
        )

    def _functions(self, rank: int) -> tuple[FunctionReport, ...]:
        keys = {probe.function: probe.request_key for probe in self._probes.get(rank, ())}
        own = [field.name for field in fields(FunctionReport) if field.name != "request_key"]
        return tuple(
            FunctionReport(
                request_key=keys.get(result.function) or keys.get(function_of_unit(result.function), ""),
                **{name: getattr(result, name) for name in own},
            )
            for result in self._results.get(rank, ())
        )


def reason_for_another(error: OrchestratorError, retries: Retries, spent: Counter[Budget]) -> str:
    """Spend one attempt more of an error's budget; why there is one, or empty for none."""
    budget = error.budget
    allowed: int = getattr(retries, budget) if budget else 0
    if budget is None or spent[budget] >= allowed:
        return ""
    spent[budget] += 1
    why = str(error).partition("\n")[0]
    if isinstance(error, LaunchFailed):
        first = error.causes[0]
        why = f"stage {error.stage}: {ranks_text(first.ranks)}: {first.kind}"
    return f"{why} (retries.{budget}: {spent[budget]} of {allowed})"


def launch(
    config: Config,
    *,
    no_compile: bool = False,
    listener: Listener | None = None,
    launcher: Launcher | None = None,
) -> Report:
    """Run a launch until every rank is warm; arguments as of `Launch`, errors as of `Launch.run`."""
    return Launch(config, no_compile=no_compile, listener=listener, launcher=launcher).run()


def ray_launcher(config: Config) -> Launcher:
    """The launcher on Ray, imported only where it is needed."""
    from warmrank.orchestrator.gang.ray_launcher import RayLauncher

    return RayLauncher(config)


@contextlib.contextmanager
def turn(config: Config) -> Iterator[None]:
    """Wait while another launch of the same workload fills this machine's cache directory for the first time.

    Only where ranks run on this machine: what other nodes have is not known here. A directory that cannot be
    used is left to the ranks to tell of.
    """
    name = f"launch-{launch_key(config)[:12]}"
    ended = config.cache_dir / LOCKS / f"{name}.ended"
    if ended.exists() or way_in_now(config.ray) != "local":
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            lock = lock_in(config.cache_dir, f"{name}.lock")
            held.callback(lock.release)
            try:
                lock.acquire()
            except Timeout:
                said = "Another launch fills %s for the first time: waiting for its end"
                logger.warning(said, config.cache_dir)
                lock.acquire(timeout=config.timeouts.compile_s)
                if ended.exists():
                    lock.release()  # all that waited go on side by side
        except UnusableCache:
            pass  # see above
        except (Timeout, OSError, NotImplementedError) as error:
            logger.warning("Launching beside others, which may compile twice: %s", error)
        yield
        with contextlib.suppress(OSError):
            ended.touch(mode=0o600)


def commit(report: Report, run: Run, access: Access, *, is_new: bool) -> Report:
    """Publish every rank's partition, then the record of the whole launch; returns the report with that.

    Where the store is away, and only its place asks for signatures, what cannot be signed waits all the same:
    nothing is signed while it waits, and the publish that comes later decides anew. Unless ``is_new`` (some
    rank ended with an artifact that it did not have before), nothing is left for later, and that is no
    problem.

    Raises:
        LaunchFailed: the store is required, and away.
        cache_store.errors.StoreError: likewise; or the driver's cache directory cannot be used.
    """
    if not is_writable(access.config.tiers) or (access.store is None and not is_new):
        return report
    if not may_publish(access.config.trust):
        if is_new:
            report = replace(report, unsigned=_no_key(access))
            run.problem(report.unsigned)
        if not (access.store is None and access.why_required):
            return report
    with run.stage("commit"):
        published = _publish(run, is_new, access.is_behind)
        for problem in (problem for part in published.values() for problem in part.problems):
            run.problem(f"store: {problem}")
        for reason, ranks in grouped((part.queued, rank) for rank, part in published.items()).items():
            if reason:
                run.problem(f"not published yet, {ranks_text(ranks)}: {reason}")
        conflicts = grouped((name, rank) for rank, part in published.items() for name in part.conflicts)
        for function, ranks in sorted(conflicts.items()):
            run.problem(
                f"nondeterministic: {function} compiled on {ranks_text(ranks)} to other bytes than the store "
                "holds, which stay"
            )
        record, is_queued = _record(run, access, published, is_new=is_new)
        # The driver's host comes last, because its record needs all partitions.
        here = os.uname().nodename
        hosts = [each.host for each in run.gang.placements if is_queued and published[each.rank].queued]
        return replace(
            report,
            record=record,
            publishes=tuple(_by_node(run.gang, published)),
            nondeterministic=tuple(
                Nondeterministic(function=function, ranks=tuple(ranks))
                for function, ranks in sorted(conflicts.items())
            ),
            queued_on=(*dict.fromkeys(host for host in hosts if host != here), here) if is_queued else (),
        )


def _publish(run: Run, *options: bool) -> dict[int, Published]:
    """Have the first rank of each node publish the partitions of all ranks there that could name theirs."""
    key = launch_key(run.config)
    partitions = run.ask("commit", RankWorker.partition, dict.fromkeys(run.ranks, ()), may_lack_store=True)
    asked = {}
    for placements in run.gang.by_node().values():
        found = {each.rank: partitions[each.rank] for each in placements if each.rank in partitions}
        if placements[0].rank in found:
            asked[placements[0].rank] = (key, found, *options)
    answers = run.ask("commit", RankHost.publish, asked, may_lack_store=True)
    return {rank: part for answer in answers.values() for rank, part in answer.items()}


def _no_key(access: Access) -> str:
    """Obstacles between the launch and the store; of one that is away, possible later ones."""
    policy = "trust.policy is require"
    if access.why_required:
        policy = f"the config sets no trust.policy, and require was chosen for {access.why_required}"
    until = "not committed" if access.store is not None else "warmrank store publish looks at the place again"
    return (
        f"{until}: {policy}, and store.trust.signing_key is not set. Make a key (warmrank keys generate) and "
        'name it there, or for a store of your own set store.trust.policy: "off"'
    )


def _record(
    run: Run, access: Access, published: Mapping[int, Published], *, is_new: bool
) -> tuple[str, bool]:
    """Commit the launch record, or leave it for later.

    Returns:
        The record's key, empty when it is not in the store; and whether it waits on the driver's disk.
    """
    config, key = run.config, ""
    missing = [rank for rank in range(config.ranks) if rank not in published]
    if missing:
        run.problem(f"not committed: {ranks_text(missing)} could not publish to the store")
        return "", False
    launch = waiting_launch(config, published)
    refs = {part.key: part.ref for part in published.values() if part.ref is not None}
    if access.store is not None and len(refs) == launch.world_size:  # all partitions are in the store
        try:
            key = access.store.commit_launch(launch.record(refs))
        except StoreError as error:
            if isinstance(error, UnusableCache) or (isinstance(error, StoreUnavailable) and error.required):
                raise
            run.problem(f"not committed: {error}")
    waits = not key or any(part.queued for part in published.values()) or access.is_behind
    if waits and is_new:
        add_launch(config.cache_dir, launch)
    return key, waits and is_new


def _by_node(gang: Gang, published: Mapping[int, Published]) -> Iterator[NodePublish]:
    """Sum up, for each node, what its ranks published."""
    for node_rank, placements in gang.by_node().items():
        if parts := [published[placement.rank] for placement in placements if placement.rank in published]:
            yield NodePublish(
                node_rank=node_rank,
                host=placements[0].host,
                num_partitions=sum(part.ref is not None for part in parts),
                num_blobs_new=sum(part.num_blobs_new for part in parts),
                bytes_new=sum(part.bytes_new for part in parts),
                num_queued=sum(bool(part.queued) for part in parts),
            )
