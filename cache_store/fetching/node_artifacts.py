"""Node artifacts out of the store: whose manifests have those that a node needs, and their bytes, once each.

The first rank of a node keeps the node's artifacts in its manifest. So the *source* of a rank is the nearest
rank at or below it whose manifest has any: the first rank of the node that hosted it, however large the nodes
of that launch were.

Invariants: a node needs the sources of the ranks that it hosts; where that is not known, or their world is
another one, of each distinct set of artifacts the source of one rank, because nodes that ran the same made
the same in other bytes. Nothing comes that the node does not declare; of several node artifacts of one path,
or sets of one artifact, the first that can be had comes (`node_offers`). Whatever fails is a reason and keeps
nothing else back: no rank needs a node artifact to be correct.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError, is_final
from warmrank.cache_store.fetching.completeness import blob_faults
from warmrank.cache_store.fetching.copying import Blobs, FetchOptions
from warmrank.cache_store.fetching.node_offers import Offers
from warmrank.cache_store.fetching.pinned import artifacts_key, take_pinned
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.node.admission import admit, permit_copies
from warmrank.cache_store.node.digest_index import DigestIndex
from warmrank.cache_store.node.node_files import (
    NodeFile,
    find_kept,
    kept_path,
    note_use,
    place_kept,
    temporary_kept,
)
from warmrank.cache_store.node.placing import Destinations
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef

logger = logging.getLogger(__name__)

INDEX_NAME = "node"
MAX_NODE_RANKS = 64
"""How many ranks below a node's first one are asked for the node artifacts of the node that hosted it."""
_NUM_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFetch:
    """Node artifacts that the cache directory keeps now.

    Attributes:
        files: these, each path once.
        num_copied: how many were not there before.
        bytes_copied: their size.
        skipped: why others are not there, one line each.
        signers: ids of the keys that vouched for them.
        copies: of each blob the private copy.
    """

    files: tuple[NodeFile, ...] = ()
    num_copied: int = 0
    bytes_copied: int = 0
    skipped: tuple[str, ...] = ()
    signers: frozenset[str] = frozenset()
    copies: tuple[NewFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What of a manifest says whose source a rank is."""

    artifacts: str
    has_node_files: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Where node artifacts go, and how."""

    blobs: Blobs
    index: DigestIndex
    beat: Callable[[], None]

    @property
    def cache_root(self) -> Path:
        """The cache directory."""
        return self.blobs.permit.root

    def count(self, num_bytes: int) -> None:
        """Say that it gets on; nobody follows how far, since they come before the long copies."""
        del num_bytes
        self.beat()


def node_sources(
    documents: Documents, refs: Sequence[PartitionRef], ranks: Collection[int] | None
) -> tuple[PartitionRef, ...]:
    """The references, of those of one launch, whose manifests have the node artifacts that a node needs.

    Args:
        documents: the store.
        refs: all partitions of a launch.
        ranks: those that the node hosts; None where that is not known, or the world is another one.

    Raises:
        StoreUnavailable: of a place of the store that is required.
    """
    by_rank = {ref.rank: ref for ref in refs}
    if ranks is None:
        return _sources_of_each_set(documents, by_rank)
    own = [by_rank[rank] for rank in sorted(ranks) if rank in by_rank]
    found = [ref for ref, seen in _look(documents, own).items() if seen.has_node_files]
    if own and own[0] not in found:
        found = [*_nearest_below(documents, by_rank, own[0].rank), *found]
    return tuple(found)


def fetch_node_files(
    documents: Documents,
    refs: Sequence[PartitionRef],
    destinations: Destinations,
    cache_root: Path,
    options: FetchOptions | None = None,
) -> NodeFetch:
    """Keep node artifacts of the partitions that ``refs`` name in the cache directory, verified.

    Args:
        documents: the store.
        refs: the partitions, those first whose artifacts are to come before others.
        destinations: the node caches of this node; what belongs to none of them does not come.
        cache_root: the cache directory.
        options: how it is done.

    Raises:
        UnusableCache: ``cache_root`` cannot be used at all, or not under this trust policy.
        StoreUnavailable: of a place of the store that is required.
    """
    trust = documents.trust
    admit(cache_root, trust.policy, trust.revoked)
    pinned = take_pinned(documents, refs, lambda _, manifest: manifest.node_files())
    skipped = [f"node artifacts of {ref.partition}: {error}" for ref, error in pinned.errors.items()]
    found = [file for ref in refs for file in pinned.kept.get(ref, ())]
    offers = Offers(found, destinations)
    if not offers:
        return NodeFetch(skipped=(*skipped, *offers.left_out), signers=pinned.signers)
    options = options or FetchOptions()
    # Also where nothing will be copied: what is there already may have come from a tool of this node.
    permit = permit_copies(cache_root, trust.policy, pinned.signers)
    room = _Room(
        blobs=Blobs(backend=documents.backend, permit=permit, shared=options.shared),
        index=DigestIndex.open(cache_root, INDEX_NAME, reread=options.reread),
        beat=options.beat,
    )
    copied: dict[Digest, None] = {}
    while wanted := offers.next():
        faults, new = _keep_all(documents, [file.digest for file in wanted], room)
        copied |= dict.fromkeys(new)
        offers.answer(faults)
    room.index.save()
    return NodeFetch(
        files=offers.taken,
        num_copied=len(copied),
        bytes_copied=sum(digest.size_bytes for digest in copied),
        skipped=(*skipped, *offers.left_out),
        signers=pinned.signers,
        copies=tuple(_copies(cache_root, offers.taken)),
    )


def _keep_all(
    documents: Documents, digests: Iterable[Digest], room: _Room
) -> tuple[dict[Digest, StoreError], list[Digest]]:
    """Why some cannot be kept, and which of the others were not kept before."""
    known = {
        digest: find_kept(room.cache_root, digest, digest_of=room.index.digest)
        for digest in dict.fromkeys(digests)
    }
    for path in known.values():
        if path is not None:
            note_use(path)
    absent = [digest for digest, path in known.items() if path is None]
    faults = blob_faults(documents.backend, absent)
    copyable = [digest for digest in absent if digest not in faults]
    faults |= _copy_all(copyable, room)
    return faults, [digest for digest in copyable if digest not in faults]


def _sources_of_each_set(
    documents: Documents, by_rank: Mapping[int, PartitionRef]
) -> tuple[PartitionRef, ...]:
    seen = _look(documents, list(by_rank.values()))
    sources: dict[PartitionRef, None] = {}
    known: set[str] = set()
    source: PartitionRef | None = None
    for _, ref in sorted(by_rank.items()):
        facts = seen.get(ref)
        if facts is None:
            continue
        source = ref if facts.has_node_files else source
        if facts.artifacts not in known and source is not None:
            known.add(facts.artifacts)
            sources[source] = None
    return tuple(sources)


def _nearest_below(
    documents: Documents, by_rank: Mapping[int, PartitionRef], rank: int
) -> tuple[PartitionRef, ...]:
    below = [
        by_rank[lower]
        for lower in range(rank - 1, max(-1, rank - 1 - MAX_NODE_RANKS), -1)
        if lower in by_rank
    ]
    for start in range(0, len(below), _NUM_THREADS):
        some = below[start : start + _NUM_THREADS]
        seen = _look(documents, some)
        for ref in some:
            if ref in seen and seen[ref].has_node_files:
                return (ref,)
    return ()


def _look(documents: Documents, refs: Sequence[PartitionRef]) -> dict[PartitionRef, _Seen]:
    def keep(_: PartitionRef, manifest: PartitionManifest) -> _Seen:
        return _Seen(artifacts=artifacts_key(manifest), has_node_files=bool(manifest.node_files()))

    kept = take_pinned(documents, refs, keep).kept
    return {ref: kept[ref] for ref in refs if ref in kept}


def _copy_all(digests: Sequence[Digest], room: _Room) -> dict[Digest, StoreError]:
    def copy(digest: Digest) -> StoreError | None:
        staged = temporary_kept(room.cache_root)
        try:
            room.blobs.copy(digest, staged, room.count)
            room.index.remember_own(place_kept(room.cache_root, staged, digest), digest)
        except StoreError as error:
            if is_final(error):
                raise
            return error
        finally:
            staged.unlink(missing_ok=True)
        return None

    answers = each(copy, digests, num_threads=_NUM_THREADS)
    return {digest: error for digest, error in zip(digests, answers, strict=True) if error is not None}


def _copies(cache_root: Path, files: Iterable[NodeFile]) -> Iterable[NewFile]:
    for digest in dict.fromkeys(file.digest for file in files):
        path = kept_path(cache_root, digest.sha256)
        yield NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
