"""Node artifacts out of the store: which manifests have them, which of them a node takes, and the copies.

The first rank of a node keeps the node's artifacts in its manifest, so the *source* of a rank is the nearest
rank at or below it whose manifest has any. Of each path the first file is taken that can be had. Whatever
fails is a reason and keeps nothing else back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.marks import admit, permit_copies
from warmrank.cache_store.cache_dir.node_files import (
    NodeCaches,
    NodeFile,
    find_kept,
    kept_path,
    note_use,
    place_kept,
    temporary_kept,
)
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError, outcome_of
from warmrank.cache_store.fetch.blobs import Blobs, FetchOptions, missing_blobs, take_pinned
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.paths import collisions
from warmrank.cache_store.records.documents import READERS, Documents
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.text import count_text

_INDEX = "node"
MAX_FILES = 8192
"""Node artifacts that one node takes, and that a manifest names; it has room for 10,000 files in all."""
MAX_BYTES = 32 << 30
_MAX_NODE_RANKS = 64
"""Ranks below a node's first one that are asked for the node artifacts of the node that hosted it."""
Launch = tuple[Sequence[PartitionRef], Collection[int] | None]
"""Manifests of a launch, and the ranks that the node hosts; None where its world is another one."""
_Source = tuple[tuple[NodeFile, ...], str]
"""Node artifacts of a manifest, and the id of the key that vouched for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFetch:
    """Node artifacts that the cache directory keeps now."""

    files: tuple[NodeFile, ...] = ()  # each path once
    num_copied: int = 0  # of distinct ones that were not there before
    bytes_copied: int = 0
    skipped: tuple[str, ...] = ()  # why others are not there
    signers: frozenset[str] = frozenset()  # ids of the keys that vouched for them
    copies: tuple[NewFile, ...] = ()  # of each blob the private copy


def fetch_node_files(
    documents: Documents,
    launches: Sequence[Launch],
    caches: NodeCaches,
    cache_root: Path,
    options: FetchOptions,
) -> NodeFetch:
    """Keep node artifacts of launches in the cache directory, verified.

    Those of earlier ones in ``launches`` come before others; what belongs to no node cache does not come.
    """
    trust, skipped = documents.trust, list[str]()
    admit(cache_root, trust.policy, trust.revoked)
    sources = [source for launch in launches for source in _sources(documents, launch, skipped)]
    signers = frozenset(signer for _, signer in sources) - {""}
    offers = _offers((file for files, _ in sources for file in files), caches, skipped)
    if not offers:
        return NodeFetch(skipped=tuple(skipped), signers=signers)
    # Also where nothing will be copied: what is there already may have come from a tool of this node.
    permit = permit_copies(cache_root, trust.policy, signers)
    index = DigestIndex(cache_root, _INDEX, reread=options.reread)
    wanted = dict.fromkeys(file.digest for several in offers.values() for file in several)
    kept = {digest: find_kept(cache_root, digest, digest_of=index.digest) for digest in wanted}
    faults = missing_blobs(documents.places, [digest for digest, path in kept.items() if path is None])
    taken = _chosen(offers, faults, skipped)
    blobs = Blobs(places=documents.places, permit=permit, shared=options.shared)

    def bring(digest: Digest) -> bool:
        if (path := kept[digest]) is not None:
            note_use(path)
            return False
        staged = temporary_kept(cache_root)
        try:
            blobs.copy(*digest, staged)
            index.remember_own(place_kept(cache_root, staged, digest), digest)
        finally:
            staged.unlink(missing_ok=True)
        return True

    distinct = list(dict.fromkeys(file.digest for file in taken))
    answers = each(lambda digest: outcome_of(lambda: bring(digest)), distinct, num_threads=READERS)
    brought = dict(zip(distinct, answers, strict=True))
    index.save()
    failed = {digest: error for digest, error in brought.items() if isinstance(error, StoreError)}
    skipped += [f"{file.path}: {failed[file.digest]}" for file in taken if file.digest in failed]
    copied = [digest for digest, is_new in brought.items() if is_new is True]
    return NodeFetch(
        files=tuple(file for file in taken if file.digest not in failed),
        num_copied=len(copied),
        bytes_copied=sum(digest.size_bytes for digest in copied),
        skipped=tuple(skipped),
        signers=signers,
        copies=tuple(
            NewFile(name=blob_name(it.sha256), source=kept_path(cache_root, it.sha256), expected=it)
            for it in distinct
            if it not in failed
        ),
    )


def _offers(files: Iterable[NodeFile], caches: NodeCaches, skipped: list[str]) -> dict[str, list[NodeFile]]:
    """The files of each path, in their order."""
    strange: Counter[str] = Counter()
    offers: dict[str, list[NodeFile]] = {}
    for file in dict.fromkeys(files):
        cache = caches.get(file.cache)
        if cache is None or not cache.takes(file.relative):
            strange[file.cache] += 1
        else:
            offers.setdefault(file.path, []).append(file)
    skipped += [
        f"node/{name}: {count_text(number, 'file')}, of which this node's config declares "
        "no directory or no pattern"
        for name, number in sorted(strange.items())
    ]
    return offers


def _chosen(
    offers: Mapping[str, Sequence[NodeFile]],
    faults: Mapping[Digest, StoreError],
    skipped: list[str],
) -> list[NodeFile]:
    """Of each path the first file that can be had, as far as there is room for it and its path."""
    firsts: dict[str, NodeFile] = {}
    digests: set[Digest] = set()
    size_bytes = 0
    for files in offers.values():
        skipped += [f"{file.path}: {faults[file.digest]}" for file in files if file.digest in faults]
        if (file := next((file for file in files if file.digest not in faults), None)) is None:
            continue
        more_bytes = 0 if file.digest in digests else file.digest.size_bytes
        if len(firsts) == MAX_FILES or size_bytes + more_bytes > MAX_BYTES:
            skipped.append(f"{file.path}: more than {MAX_FILES} files or {MAX_BYTES} bytes for one node")
            continue
        size_bytes += more_bytes
        digests.add(file.digest)
        firsts[file.path] = file
    bad = dict(collisions(firsts))
    skipped += [f"{path}: {fault}" for path, fault in bad.items()]
    return [file for path, file in firsts.items() if path not in bad]


def _sources(documents: Documents, launch: Launch, skipped: list[str]) -> list[_Source]:
    """The manifests of a launch that have the node artifacts that a node needs, by rank.

    Of another world these are all of them: any rank may come to use what any other one made.
    """
    refs, ranks = launch
    by_rank = {ref.rank: ref for ref in sorted(refs, key=lambda ref: ref.rank)}
    own = [rank for rank in by_rank if ranks is None or rank in ranks]
    found = _look(documents, [by_rank[rank] for rank in own], skipped)
    with_files = [source for source in found.values() if source[0]]
    if ranks is None or not own or found.get(by_rank[own[0]], ((), ""))[0]:
        return with_files
    lowest = own[0] - 1 - _MAX_NODE_RANKS
    below = [by_rank[rank] for rank in range(own[0] - 1, lowest, -1) if rank in by_rank]
    for start in range(0, len(below), READERS):
        nearer = _look(documents, below[start : start + READERS], skipped).values()
        if (source := next((source for source in nearer if source[0]), None)) is not None:
            return [source, *with_files]
    return with_files


def _look(
    documents: Documents, refs: Sequence[PartitionRef], skipped: list[str]
) -> dict[PartitionRef, _Source]:
    pinned = take_pinned(documents, refs, lambda _, found: (found.manifest.node_files(), found.signer_id))
    skipped += [f"node artifacts of {ref.partition}: {error}" for ref, error in pinned.errors.items()]
    return {ref: pinned.kept[ref] for ref in refs if ref in pinned.kept}
