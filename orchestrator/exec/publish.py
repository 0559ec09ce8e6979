"""Brings what a command added into the store: partitions, the launch record, directories of tools.

Invariants: partitions are published once every rank of the world has noted something in its journal, on the
node of each rank; the launch, by the driver, when all of them are in the store. Both go by way of the queue
on each node's disk, so what the store does not take waits there for ``warmrank publish``.

Hosts that each run ``exec --here`` for one world of ranks meet in the store: every host notes there what it
published, and whoever finds the notes of all commits the launch. Hosts that end at the same moment may both
do so, which comes to one record.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.errors import NotInStore, StoreError, is_final
from warmrank.cache_store.publish_pending import QueueReport, publish_pending
from warmrank.cache_store.publishing.publish_queue import add_launch, add_partition
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import OrchestratorError, ranks_text
from warmrank.orchestrator.exec.placement import HostGroup
from warmrank.orchestrator.launch.commit import waiting_launch
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.store.stores import open_store
from warmrank.orchestrator.store.sync import Seat, Target, targets
from warmrank.worker import journal
from warmrank.worker.environment import environment
from warmrank.worker.manifests import of_journals, with_node_files
from warmrank.worker.results import Published
from warmrank.worker.settings import expanded

if TYPE_CHECKING:
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.cache_store.store import Store
    from warmrank.orchestrator.gang.node_artifacts import NodeKeeper

Tools = Mapping[str, Target]
"""The directory of each tool, and the components that it is stored under."""

Work = Mapping[tuple[int, int], Counter[str]]
"""Look-ups that ended ``compiled``, ``loaded`` or ``adopted``, by world size and rank."""

_NOTE, _NOTE_FILE = "exec-world", "partitions.json"


class NotPublished(OrchestratorError):
    """What a command added cannot be published; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What came from the store or went there, and what went wrong, one line each."""

    said: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


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
    """What the ranks of this node did so far; without those whose journals hold nothing.

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


def not_whole(work: Work, num_ranks: int, num_here: int) -> str:
    """Why what ranks did makes no launch; empty when it does.

    Args:
        work: of all ranks that this command ran.
        num_ranks: of the world.
        num_here: how many of them this command runs; the others run on other hosts.
    """
    there = {rank for world_size, rank in work if world_size == num_ranks}
    if len(there) >= num_here:
        return ""
    if sizes := sorted({world_size for world_size, _ in work} - {num_ranks}):
        others = ", ".join(map(str, sizes))
        return f"the command ran ranks of a world of {others}, and the config has ranks: {num_ranks}"
    if num_here < num_ranks:
        return f"{len(there)} of the {num_here} ranks here loaded or compiled something"
    return f"{ranks_text(set(range(num_ranks)) - there)} of {num_ranks} loaded or compiled nothing here"


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
    report = _publish_queue(config)
    return {
        rank: part if part.key in report.published else replace(part, queued=_why_kept(report, part.key[:12]))
        for rank, part in done.items()
    }


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


def _publish_queue(config: Config) -> QueueReport:
    """Publish all that waits on this disk; a store that is away is why it is kept."""
    assert config.store is not None  # noqa: S101 - nothing is published without one
    try:
        return publish_pending(open_store(config.store), config.cache_dir)
    except StoreError as error:
        if is_final(error):
            raise
        return QueueReport(published=(), committed=(), kept={"": str(error)}, dropped={}, problems=())


def _why_kept(report: QueueReport, name: str) -> str:
    """The reason why something still waits."""
    reasons = {**report.dropped, **report.kept}
    return next((why for label, why in reasons.items() if name in label or not label), "it cannot be read")


def commit_launch(config: Config, published: Mapping[int, Published]) -> tuple[str, str]:
    """Commit the record of a world whose partitions are all published, or let it wait on this disk.

    Returns:
        The record's key, empty when it is not in the store; and why it waits, empty when it does not.

    Raises:
        StoreError: a required place of the store is away, or the cache directory cannot be used.
    """
    launch = waiting_launch(config, published)
    add_launch(config.cache_dir, launch)
    report = _publish_queue(config)
    is_kept = any(launch.created in label or not label for label in (*report.kept, *report.dropped))
    if is_kept or not report.committed:
        return "", next((part.queued for part in published.values() if part.queued), "") or _why_kept(
            report, launch.created
        )
    return report.committed[-1], ""  # the newest comes last


def exchange(
    store: Store, config: Config, hosts: HostGroup, published: Mapping[int, Published]
) -> dict[int, Published] | None:
    """Note what this host published, and read the notes of all; None while some are missing.

    A note is a pushed directory with one file, so it is signed and evicted as others are.

    Raises:
        StoreError: the store cannot be written or read.
    """
    run = {"launch": launch_key(config), "ranks": str(config.ranks), "run": hosts.run_id}
    notes = [{**run, "node": f"{node} of {hosts.nnodes}"} for node in range(hosts.nnodes)]
    with tempfile.TemporaryDirectory(prefix="warmrank-") as directory:
        own = Path(directory, "own")
        own.mkdir(mode=0o700)
        parts = {rank: [part.environment, part.partition, part.key] for rank, part in published.items()}
        (own / _NOTE_FILE).write_text(json.dumps(parts))
        (own / _NOTE_FILE).chmod(0o600)
        store.push_directory(_NOTE, own, notes[hosts.node_rank])
        found: dict[int, Published] = {}
        for node, components in enumerate(notes):
            note = Path(directory, str(node))
            try:
                store.pull_directory(_NOTE, note, components)
            except NotInStore:
                return None
            for rank, (environment_, partition, key) in json.loads((note / _NOTE_FILE).read_text()).items():
                found[int(rank)] = Published(ref=None, environment=environment_, partition=partition, key=key)
    return found if sorted(found) == list(range(config.ranks)) else None
