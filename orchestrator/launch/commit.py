"""The last stage: every rank's manifest, then, by the driver alone, the launch record.

What the store does not take because it is away stays on the nodes' disks, and `warmrank store publish` puts
it there later: partitions on the node of each rank, what the launch is on the driver's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from warmrank.cache_store.errors import StoreError, StoreUnavailable, UnusableCache
from warmrank.cache_store.publish_pending import AwaitedPartition, WaitingLaunch, add_launch
from warmrank.cache_store.records.manifest import environments_of, utc_now
from warmrank.orchestrator.config.models import identity, launch_key
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.orchestrator.launch.report import Committed, NodePublish, Nondeterministic
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.nodes import Gang
from warmrank.orchestrator.stores import Access, is_writable, may_publish
from warmrank.orchestrator.text import grouped
from warmrank.worker.results import Published


def commit(stages: Stages, access: Access, *, is_new: bool) -> Committed:
    """Publish every rank's partition, then the record of the whole launch.

    Where the store is away, and only its place asks for signatures, what cannot be signed waits all the same:
    nothing is signed while it waits, and the publish that comes later decides anew. Unless ``is_new`` (some
    rank ended with an artifact that it did not have before), nothing is left for later, and that is no
    problem.

    Raises:
        LaunchFailed: the store is required, and away.
        cache_store.errors.StoreError: likewise; or the driver's cache directory cannot be used.
    """
    unsigned = ""
    if not is_writable(access.config.tiers) or (access.store is None and not is_new):
        return Committed()
    if not may_publish(access.config.trust):
        unsigned = _no_key(access) if is_new else ""
        if unsigned:
            stages.problem(unsigned)
        if not (access.store is None and access.why_required):
            return Committed(unsigned=unsigned)
    with stages.stage("commit"):
        arguments = launch_key(stages.config), is_new, access.is_behind
        asked = dict.fromkeys(range(stages.config.ranks), arguments)
        answers = stages.ask_store("commit", RankHost.publish, asked)
        published = {rank: answer for rank, answer in answers.items() if answer is not None}
        conflicts = grouped((name, rank) for rank, part in published.items() for name in part.conflicts)
        nondeterministic = tuple(
            Nondeterministic(function=function, ranks=tuple(ranks))
            for function, ranks in sorted(conflicts.items())
        )
        _tell(stages, published, nondeterministic)
        record, is_queued = _record(stages, access, published, is_new=is_new)
        return Committed(
            record=record,
            publishes=_by_node(stages.gang, published),
            nondeterministic=nondeterministic,
            queued_on=_queued_on(stages, published) if is_queued else (),
            unsigned=unsigned,
        )


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


def _tell(
    stages: Stages, published: Mapping[int, Published], nondeterministic: tuple[Nondeterministic, ...]
) -> None:
    """Notes on the publishing that are no failures."""
    for problem in (problem for part in published.values() for problem in part.problems):
        stages.problem(f"store: {problem}")
    for reason, ranks in grouped((part.queued, rank) for rank, part in published.items()).items():
        if reason:
            stages.problem(f"not published yet, {ranks_text(ranks)}: {reason}")
    for found in nondeterministic:
        stages.problem(
            f"nondeterministic: {found.function} compiled on {ranks_text(found.ranks)} to other bytes than "
            "the store holds, which stay"
        )


def _record(
    stages: Stages, access: Access, published: Mapping[int, Published], *, is_new: bool
) -> tuple[str, bool]:
    """Commit the launch record, or leave it for later.

    Returns:
        The record's key, empty when it is not in the store; and whether it waits on the driver's disk.
    """
    config, key = stages.config, ""
    missing = [rank for rank in range(config.ranks) if rank not in published]
    if missing:
        stages.problem(f"not committed: {ranks_text(missing)} could not publish to the store")
        return "", False
    launch = waiting_launch(config, published)
    refs = {part.key: part.ref for part in published.values() if part.ref is not None}
    if access.store is not None and len(refs) == launch.world_size:  # all partitions are in the store
        try:
            key = access.store.commit_launch(launch.record(refs))
        except StoreError as error:
            if isinstance(error, UnusableCache) or (isinstance(error, StoreUnavailable) and error.required):
                raise
            stages.problem(f"not committed: {error}")
    waits = not key or any(part.queued for part in published.values()) or access.is_behind
    if waits and is_new:
        add_launch(config.cache_dir, launch)
    return key, waits and is_new


def waiting_launch(config: Config, published: Mapping[int, Published]) -> WaitingLaunch:
    """The record of a launch, but for the digests that its manifests have in the store.

    ``published`` is every rank's partition, in the store or not.
    """
    environments = environments_of({rank: part.environment for rank, part in published.items()})
    return WaitingLaunch(
        launch_key=launch_key(config),
        identity=identity(config),
        world_size=config.ranks,
        environment=environments.environment,
        others=environments.others,
        partitions=tuple(
            AwaitedPartition(partition=part.partition, rank=rank, manifest_key=part.key)
            for rank, part in sorted(published.items())
        ),
        created=utc_now(),
    )


def _queued_on(stages: Stages, published: Mapping[int, Published]) -> tuple[str, ...]:
    """Hosts on which something waits; the driver's last, because its record needs all partitions."""
    hosts = [seat.host for seat in stages.gang.seats if published[seat.rank].queued]
    here = os.uname().nodename
    return (*dict.fromkeys(host for host in hosts if host != here), here)


def _by_node(gang: Gang, published: Mapping[int, Published]) -> tuple[NodePublish, ...]:
    """Sum up, for each node, what its ranks published."""
    found = []
    for node_rank, seats in gang.by_node().items():
        parts = [published[seat.rank] for seat in seats if seat.rank in published]
        if parts:
            found.append(
                NodePublish(
                    node_rank=node_rank,
                    host=seats[0].host,
                    num_partitions=sum(part.ref is not None for part in parts),
                    num_blobs_new=sum(part.num_blobs_new for part in parts),
                    bytes_new=sum(part.bytes_new for part in parts),
                    num_queued=sum(bool(part.queued) for part in parts),
                )
            )
    return tuple(found)
