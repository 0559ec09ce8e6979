"""One node's part in `warmrank exec`: caches before the command, the command, what it added afterwards.

An `ExecNode` knows neither Ray nor torch: on a cluster it is an actor, with ``--here`` the driver has it. Its
methods may be called from several threads, so that a command goes on while its artifacts are published.
Partitions go to the store by way of the queue on the node's disk, so what the store does not take waits there
for ``warmrank store publish``.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.marks import admit, check_marks
from warmrank.cache_store.cache_dir.private_files import (
    ensure_cache_dir,
    make_private_directories,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.errors import NotInStore, StoreError, UnusableCache, is_final
from warmrank.cache_store.publish_pending import QueueReport, add_partition, publish_pending
from warmrank.orchestrator.config.models import Config, variable_of
from warmrank.orchestrator.errors import BadArgument, OrchestratorError
from warmrank.orchestrator.exec.placement import Placement, When
from warmrank.orchestrator.gang.launcher import free_port
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper, fetch_partitions, keeper_of
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.reaper_client import Chunk, ReapedCommand
from warmrank.orchestrator.store.stores import is_writable, may_publish, open_store, open_to_fetch
from warmrank.orchestrator.store.sync import Seat, Target, targets
from warmrank.orchestrator.text import count_text
from warmrank.worker import journal
from warmrank.worker.keys.environment import environment
from warmrank.worker.rank.manifests import of_journals, with_node_files
from warmrank.worker.results import Published
from warmrank.worker.settings import expanded

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.cache_store.store import Store

Tools = Mapping[str, Target]
"""The directory of each tool, and the components that it is stored under."""

Work = Mapping[tuple[int, int], Counter[str]]
"""Look-ups that ended ``compiled``, ``loaded`` or ``adopted``, by world size and rank."""

_JOURNALS = ".journal"
_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
_EXEC = "exec-"


class NotPublished(OrchestratorError):
    """Files that a command added cannot be published; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Transfers from and to the store, and faults, one line each."""

    said: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """News from a node.

    Attributes:
        output: of the command, since the last call.
        status: its exit status, once all of it has ended and its output was taken.
        is_ready: the condition held at some time.
    """

    output: Sequence[Chunk] = ()
    status: int | None = None
    is_ready: bool = False


class ExecNode:
    """Runs the command on one node.

    Args:
        config: the launch.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tools: Tools = {}
        self._keeper: NodeKeeper | None = None
        self._journals = config.cache_dir / _JOURNALS / f"{_EXEC}{temporary_name()}"
        self._command: ReapedCommand | None = None
        self._when = When(kind="none")
        self._mark_before: tuple[int, ...] | None = None
        self._is_ready = False

    def port(self, address: str) -> int:
        """A free port of this node."""
        return free_port(address)

    def prepare(self, placement: Placement) -> tuple[bool, Synced]:
        """Fetch what the store has of the launch, and of the command's tools.

        Returns:
            Whether the store has the launch; what was fetched.

        Raises:
            BadArgument: a key of ``exec.keys`` is unknown here.
            StoreError: the cache directory cannot be used, or a required place of the store is away.
        """
        config = self._config
        if config.store is None:
            ensure_cache_dir(config.cache_dir)
        else:
            admit(config.cache_dir, config.store.trust.policy or "require", config.store.trust.revoked)
        self._keeper = keeper_of(config)
        if self._keeper is not None:
            self._keeper.begin()
        self._tools = tools_of(config, placement.node_rank, placement.nnodes)
        if config.store is None:
            return False, Synced(
                said=["the config names no store: nothing is fetched, and nothing published"]
            )
        trust = config.store.trust
        for tool in self._tools.values():  # also where the store is away
            check_marks(tool.directory, trust.policy or "require", trust.revoked)
        try:
            # A store that is to be filled is made, as by a launch.
            fills = is_writable(config.store.tiers) and may_publish(config.store.trust)
            return self._fetch(
                open_store(config.store, to_sign=False) if fills else open_to_fetch(config.store)
            )
        except StoreError as error:
            if is_final(error) or isinstance(error, UnusableCache):
                raise
            return False, Synced(problems=[str(error)])

    def _fetch(self, store: Store) -> tuple[bool, Synced]:
        """Partitions of all ranks, because the command may place them as it likes; then the directories."""
        report = fetch_partitions(self._config, store, self._keeper, launch_key=launch_key(self._config))
        num_bytes = sum(part.bytes_copied for part in report.partitions)
        num = count_text(len(report.partitions), "partition")
        fetched = f"{num} in the cache, {num_bytes} bytes copied in {report.seconds:.2f} s: {report.reason}"
        missed = f"nothing fetched, so what is not on this disk is compiled: {report.reason}"
        tools = pull_tools(store, self._tools)
        said = [fetched] if report.found else [missed] if self._config.workload else []
        return report.found, Synced(said=said + tools.said, problems=[*report.faults, *tools.problems])

    def start(
        self, words: Sequence[str], placement: Placement, when: When, grace_s: float, captured: bool
    ) -> None:
        """Start the command.

        Args:
            words: the command, with its placeholders.
            placement: of this node.
            when: the command is ready; a file of an earlier run does not count.
            grace_s: seconds from SIGTERM to SIGKILL.
            captured: `poll` takes its output, and who does not call that for ``watch.lease_s`` has lost it;
                otherwise it has this process's streams.

        Raises:
            BadArgument: somebody listens at the port already.
        """
        self._when = replace(when, path=placement.fill(when.path))
        self._mark_before = self._when.mark()
        if when.kind == "port" and self._mark_before is not None:
            msg = (
                f"--publish-when: {when} already, before the command was started; end what listens there, or "
                "let the command listen at another port"
            )
            raise BadArgument(msg)
        make_private_directories(self._journals.parent)
        sweep_debris(self._journals.parent, _EXEC)  # of a run that was killed
        make_private_directories(self._journals)
        caches = self._config.exec.sync
        told = {variable_of(cache): str(self._tools[cache.tool].directory) for cache in caches}
        told |= {**placement.variables(), "WARMRANK_JOURNAL_DIR": str(self._journals)}
        told |= {"WARMRANK_NO_COMPILE": "1"} if self._config.no_compile else {}
        told.pop("", None)  # a tool that finds its directory by itself
        if "inductor" in self._tools:  # whose precompiled C++ headers lie outside of its directory
            told |= {_HEADERS: os.environ.get(_HEADERS, "0")}
        self._command = ReapedCommand(
            [placement.fill(word) for word in words],
            environ={**own_environ(of_ray=captured), **told},
            grace_s=grace_s,
            lease_s=self._config.watch.lease_s if captured else None,
            captured=captured,
        )

    def poll(self, wait_s: float, reads: bool = True) -> State:
        """Return what is new; wait that long for it. Output that is not read waits with the command."""
        assert self._command is not None  # noqa: S101 - after `start`
        output, status = self._command.poll(wait_s, reads=reads)
        self._is_ready = self._is_ready or self._when.mark() not in (None, self._mark_before)
        return State(output=output, status=status, is_ready=self._is_ready)

    def signal(self, number: int) -> None:
        """Send the command's process group a signal; SIGKILL kills it and all below it."""
        if self._command is not None:
            self._command.signal(number)

    def work(self) -> Work:
        """Work of this node's ranks so far."""
        return work_in(self._journals)

    def push(self) -> Synced:
        """Store the tools' directories."""
        assert self._config.store is not None  # noqa: S101 - nothing is published without one
        try:
            return push_tools(open_store(self._config.store), self._tools) if self._tools else Synced()
        except StoreError as error:
            return Synced(problems=[f"directories of tools are not pushed: {error}"])

    def publish(self, ranks: Sequence[int]) -> dict[int, Published]:
        """Publish the partitions of ranks that ran here; see `publish_ranks`."""
        return publish_ranks(self._config, self._journals, ranks, self._keeper)

    def close(self) -> None:
        """End what still runs, and remove the journals."""
        if self._command is not None:
            self._command.close()
            self._command = None
        shutil.rmtree(self._journals, ignore_errors=True)
        with suppress(OSError):  # others' journals lie there
            self._journals.parent.rmdir()


def own_environ(*, of_ray: bool) -> dict[str, str]:
    """This process's environment, in a process of Ray without what that tells its workers."""
    kept = ("RAY_ADDRESS",) if of_ray else tuple(os.environ)
    return {name: os.environ[name] for name in os.environ if name in kept or not name.startswith("RAY_")}


def tools_of(config: Config, node_rank: int, nnodes: int) -> Tools:
    """The directories of tools on this node; nodes of one world keep theirs apart, as their ranks differ.

    Raises:
        BadArgument: a key of ``exec.keys`` is unknown here.
    """
    # By default all that is known of the environment, and the launch: else models push under one key in turns
    known = [f"{name}={value}" for name, value in sorted(environment().items())]
    keys = list(config.exec.keys) or [*known, f"launch={launch_key(config)}"]
    keys += [f"node={node_rank} of {nnodes}"] if nnodes > 1 else []
    seat = Seat(scope="node", rank=None, world_size=None)
    paths = {
        each.tool: expanded(each.path) if each.path else str(config.cache_dir / "tools" / each.tool)
        for each in config.exec.sync
    }
    return {tool: targets([path], keys, seat)[0] for tool, path in paths.items()}


def pull_tools(store: Store, tools: Tools) -> Synced:
    """Restore directories; raises only what a required place of the store does."""
    done = Synced()
    for tool, target in tools.items():
        try:
            report = store.pull_directory(tool, target.directory, target.components)
        except NotInStore as miss:
            done.said.append(f"{tool}: nothing to pull: {miss.remedy}")
        except StoreError as error:
            if is_final(error):
                raise
            done.problems.append(f"{tool}: not pulled: {error}")
        else:
            files = count_text(report.num_files, "file")
            done.said.append(f"{tool}: pulled {report.num_new} new of {files}")
            done.problems.extend(f"{tool}: {problem}" for problem in report.problems)
    return done


def push_tools(store: Store, tools: Tools) -> Synced:
    """Store the directories that are there."""
    done = Synced()
    for tool, target in tools.items():
        if not target.directory.is_dir():
            done.said.append(f"{tool}: nothing to push: the command made no {target.directory}")
            continue
        try:
            report = store.push_directory(tool, target.directory, target.components)
        except (StoreError, OSError) as error:
            done.problems.append(f"{tool}: not pushed: {error}")
        else:
            files = count_text(report.num_files, "file")
            done.said.append(f"{tool}: pushed {files}, {report.num_blobs_new} of them new to the store")
    return done


def work_in(journals: Path) -> Work:
    """Work of this node's ranks so far; without those whose journals hold nothing.

    Raises:
        NotPublished: a journal cannot be read.
    """
    try:
        found = {
            whose: Counter(str(result.outcome) for file in files for result, _ in journal.read(file))
            for whose, files in journal.by_rank(journals).items()
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        msg = f"the ranks' journals cannot be read: {error}"
        raise NotPublished(msg) from error
    return {whose: outcomes for whose, outcomes in found.items() if outcomes}


def publish_ranks(
    config: Config, journals: Path, ranks: Sequence[int], keeper: NodeKeeper | None
) -> dict[int, Published]:
    """Publish partitions of ranks that ran on this node, or let them wait on its disk.

    Args:
        config: the launch.
        journals: directory of the ranks' journals.
        ranks: those of this node.
        keeper: of the node's artifacts, which go with the first rank; None where there are none.

    Raises:
        StoreError: a required place of the store is away, or the cache directory cannot be used.
        NotPublished: the command compiled in another environment than this process's.
    """
    files, done = journal.by_rank(journals), dict[int, Published]()
    for rank in ranks:
        manifest = of_journals(
            files[config.ranks, rank], rank=rank, world_size=config.ranks, root=config.cache_dir
        )
        _check_environment(manifest)
        if keeper is not None and not done:
            manifest = with_node_files(manifest, keeper.collect(manifest))
        done[rank] = Published(
            ref=None,
            environment=manifest.environment,
            partition=manifest.partition,
            key=add_partition(config.cache_dir, launch_key(config), manifest),
        )
    report = publish_queue(config)
    return {rank: replace(part, queued=why_kept(report, part.key[:12])) for rank, part in done.items()}


def _check_environment(manifest: PartitionManifest) -> None:
    """Refuse artifacts whose environment is not the one that the manifest would give."""
    for request in manifest.requests:
        for name, value in manifest.environment.items():
            if (found := request.components.get(name, value)) != value:
                msg = (
                    f"the command compiled with {name} {found}, and warmrank runs with {name} {value}: "
                    "nodes would look for the launch in vain. Install warmrank where the command runs"
                )
                raise NotPublished(msg)


def publish_queue(config: Config) -> QueueReport:
    """Publish all that waits on this disk; a store that is away is why it is kept."""
    assert config.store is not None  # noqa: S101 - nothing is published without one
    try:
        return publish_pending(open_store(config.store), config.cache_dir)
    except StoreError as error:
        if is_final(error):
            raise
        return QueueReport(published=(), committed=(), kept={"": str(error)}, dropped={}, problems=())


def why_kept(report: QueueReport, name: str) -> str:
    """The reason why something still waits, or never will be published; empty for neither."""
    reasons = {**report.dropped, **report.kept}
    return next((why for label, why in reasons.items() if name in label or not label), "")
