"""Seeding a node with the artifacts of nodes: kept in its cache directory, then put where its tools look.

Invariants: as those of `cache_store.seed`; they come from the last launches, of each path from the newest of
which they can be had. A node cache that the trust policy refuses gets none, and is no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warmrank.cache_store.errors import StoreError, is_final
from warmrank.cache_store.fetching.copying import FetchOptions
from warmrank.cache_store.node.node_files import NodeFile
from warmrank.cache_store.node.placing import Destinations, Vouched, place_files
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionRef
from warmrank.cache_store.store import Store

MAX_NODE_LAUNCHES = 4
"""Launches whose manifests are looked through for node artifacts; each takes over what it was given, so the
others have what its nodes did not take or declare, and copies of what cannot be had of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWanted:
    """What a node is about to run, as far as its own artifacts depend on it.

    Attributes:
        environment: this node's.
        world_size: number of ranks.
        ranks: this node's; None stands for all.
        destinations: the node caches of this node.
    """

    environment: Mapping[str, str]
    world_size: int
    ranks: tuple[int, ...] | None
    destinations: Destinations


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeedReport:
    """What became of the node artifacts of one node.

    Attributes:
        files: those that the node's cache directory keeps now.
        num_fetched: how many distinct ones came from the store.
        bytes_fetched: their size.
        num_placed: those that were written to where the node's tools look for them.
        num_there: those that lay there, with the same bytes.
        skipped: why others do not lie there, one line each.
    """

    files: tuple[NodeFile, ...] = ()
    num_fetched: int = 0
    bytes_fetched: int = 0
    num_placed: int = 0
    num_there: int = 0
    skipped: tuple[str, ...] = ()


def seed_node(
    store: Store,
    records: Sequence[LaunchRecord],
    wanted: NodeWanted,
    cache_root: Path,
    options: FetchOptions,
    faults: list[str],
) -> NodeSeedReport:
    """Bring the node artifacts of the last launches, and put each in its place.

    Args:
        store: the store.
        records: launches that fit, newest first.
        wanted: what the node needs them for.
        cache_root: the node's cache directory.
        options: how a fetch is done.
        faults: takes up what could not be used at all.

    Raises:
        StoreUnavailable: of a place of the store that is required.
    """
    destinations, refused = store.admitted(wanted.destinations)
    try:
        sources: dict[PartitionRef, None] = {}
        for record in records[:MAX_NODE_LAUNCHES]:
            here = record.made_in(wanted.environment)
            known = record.world_size == wanted.world_size and {ref.rank for ref in here}.issuperset(
                wanted.ranks or ()
            )
            ranks = wanted.ranks if known else None
            sources |= dict.fromkeys(store.node_sources(here, ranks))
        found = (
            _lay_out(store, tuple(sources), destinations, cache_root, options)
            if sources
            else NodeSeedReport()
        )
    except StoreError as error:
        if is_final(error):
            raise
        faults.append(f"node artifacts: {error}")
        found = NodeSeedReport()
    return replace(found, skipped=(*refused, *found.skipped))


def _lay_out(
    store: Store,
    sources: Sequence[PartitionRef],
    destinations: Destinations,
    cache_root: Path,
    options: FetchOptions,
) -> NodeSeedReport:
    fetched = store.fetch_node_files(sources, destinations, cache_root, options=options)
    vouched = Vouched(policy=store.policy, signers=fetched.signers)
    placed = place_files(cache_root, fetched.files, destinations, vouched)
    return NodeSeedReport(
        files=fetched.files,
        num_fetched=fetched.num_copied,
        bytes_fetched=fetched.bytes_copied,
        num_placed=len(placed.new),
        num_there=len(placed.there),
        skipped=(*fetched.skipped, *placed.skipped),
    )
