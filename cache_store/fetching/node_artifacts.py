"""Node artifacts out of the store: whose manifests have those that a node needs, and their bytes, once each.

The first rank of a node keeps the node's artifacts in its manifest. So the *source* of a rank is the nearest
rank at or below it whose manifest has any: the first rank of the node that hosted it, however large the nodes
of that launch were.

Invariants: a node needs the sources of the ranks that it hosts; where that is not known, or their world is
another one, of each distinct set of artifacts the source of one rank, because nodes that ran the same made
the same in other bytes. Of two node artifacts of one path the first counts. Whatever fails is a reason and
keeps nothing else back: no rank needs a node artifact to be correct.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cache_store.backends.backend import NewFile
from cache_store.digests import Digest
from cache_store.errors import StoreError, is_final
from cache_store.fetching.completeness import blob_faults
from cache_store.fetching.copying import BlobSource, copy_blob
from cache_store.fetching.pinned import artifacts_key, take_pinned
from cache_store.layout import blob_name
from cache_store.node.admission import admit
from cache_store.node.digest_index import DigestIndex
from cache_store.node.node_files import NodeFile, find_kept, kept_path, place_kept, temporary_kept
from cache_store.node.signers import mark_signers
from cache_store.node.unverified import mark_unverified
from cache_store.parallel import each
from cache_store.paths import collisions
from cache_store.records.documents import Documents
from cache_store.records.manifest import PartitionManifest, PartitionRef

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


def fetch_node_files(documents: Documents, refs: Sequence[PartitionRef], cache_root: Path) -> NodeFetch:
    """Keep the node artifacts of the partitions that ``refs`` name in the cache directory, verified.

    Raises:
        UnusableCache: ``cache_root`` cannot be used at all, or not under this trust policy.
        StoreUnavailable: of a place of the store that is required.
    """
    trust = documents.trust
    admit(cache_root, trust.policy, trust.revoked)
    pinned = take_pinned(documents, refs, lambda _, manifest: manifest.node_files())
    skipped = [f"node artifacts of {ref.partition}: {error}" for ref, error in pinned.errors.items()]
    wanted = _distinct((file for ref in refs for file in pinned.kept.get(ref, ())), skipped)
    index = DigestIndex.open(cache_root, INDEX_NAME)
    digests = dict.fromkeys(file.digest for file in wanted)
    absent = [digest for digest in digests if find_kept(cache_root, digest, digest_of=index.digest) is None]
    faults = blob_faults(documents.backend, absent)
    copyable = [digest for digest in absent if digest not in faults]
    if copyable:
        mark_unverified(cache_root, trust.policy)
        mark_signers(cache_root, pinned.signers)
        faults |= _copy_all(documents, copyable, cache_root, index)
    index.save()
    skipped += [f"{file.path}: {faults[file.digest]}" for file in wanted if file.digest in faults]
    copied = [digest for digest in copyable if digest not in faults]
    kept = tuple(file for file in wanted if file.digest not in faults)
    return NodeFetch(
        files=kept,
        num_copied=len(copied),
        bytes_copied=sum(digest.size_bytes for digest in copied),
        skipped=tuple(skipped),
        signers=pinned.signers,
        copies=tuple(_copies(cache_root, kept)),
    )


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


def _distinct(files: Iterable[NodeFile], skipped: list[str]) -> list[NodeFile]:
    """Files that can stand side by side, the first of each path; why others are left out in ``skipped``."""
    first: dict[str, NodeFile] = {}
    for file in files:
        known = first.setdefault(file.path, file)
        if known.digest != file.digest:
            skipped.append(f"{file.path}: another node has it with other bytes, which come first")
    bad = dict(collisions(first))
    skipped += [f"{path}: {fault}" for path, fault in bad.items()]
    return [file for path, file in first.items() if path not in bad]


def _copy_all(
    documents: Documents, digests: Sequence[Digest], cache_root: Path, index: DigestIndex
) -> dict[Digest, StoreError]:
    def copy(digest: Digest) -> StoreError | None:
        source = BlobSource(backend=documents.backend, sha256=digest.sha256, size_bytes=digest.size_bytes)
        staged = temporary_kept(cache_root)
        try:
            copy_blob(source, staged, _count_nothing)
            index.remember(place_kept(cache_root, staged, digest), digest)
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


def _count_nothing(num_bytes: int) -> None:
    """For copies whose progress nobody follows: node artifacts come before the long copies."""
