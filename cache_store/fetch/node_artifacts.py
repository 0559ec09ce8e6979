"""Node artifacts out of the store: which manifests have them, which of them a node takes, and the copies.

The first rank of a node keeps the node's artifacts in its manifest, so the *source* of a rank is the nearest
rank at or below it whose manifest has any. What belongs together is one *unit*, of which the first *offer* is
taken that can be had whole. Whatever fails is a reason and keeps nothing else back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.marks import admit, permit_copies
from warmrank.cache_store.cache_dir.node_files import (
    Destinations,
    NodeFile,
    find_kept,
    kept_path,
    note_use,
    place_kept,
    temporary_kept,
)
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError, outcome_of
from warmrank.cache_store.fetch.blobs import Blobs, FetchOptions, blob_faults
from warmrank.cache_store.fetch.manifests import artifacts_key, take_pinned
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.paths import collisions
from warmrank.cache_store.records.documents import READERS, Documents
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.text import count_text

INDEX_NAME = "node"
MAX_FILES = 8192
"""Node artifacts that one node takes, and that a manifest names; it has room for 10,000 files in all."""
MAX_BYTES = 32 << 30
MAX_NODE_RANKS = 64
"""Ranks below a node's first one that are asked for the node artifacts of the node that hosted it."""
_SET_PARTS = 3  # <artifact>/<conditions>/<set>/...
_Unit = tuple[str, str]
_Offer = dict[str, NodeFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFetch:
    """Node artifacts that the cache directory keeps now."""

    files: tuple[NodeFile, ...] = ()  # each path once
    num_copied: int = 0  # of distinct ones that were not there before
    bytes_copied: int = 0
    skipped: tuple[str, ...] = ()  # why others are not there
    signers: frozenset[str] = frozenset()  # ids of the keys that vouched for them
    copies: tuple[NewFile, ...] = ()  # of each blob the private copy


def node_sources(
    documents: Documents, refs: Sequence[PartitionRef], ranks: Collection[int] | None
) -> tuple[PartitionRef, ...]:
    """The references, of all of one launch, whose manifests have the node artifacts that a node needs.

    ``ranks`` are those that the node hosts; None where that is not known, or the world is another one.
    """
    by_rank = {ref.rank: ref for ref in sorted(refs, key=lambda ref: ref.rank)}
    if ranks is None:
        return _sources_of_each_set(documents, by_rank.values())
    own = [ref for rank, ref in by_rank.items() if rank in ranks]
    found = [ref for ref, (_, has_files) in _look(documents, own).items() if has_files]
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

    Those of earlier partitions come before others; what belongs to no node cache of this node does not come.
    """
    trust = documents.trust
    admit(cache_root, trust.policy, trust.revoked)
    pinned = take_pinned(documents, refs, lambda _, manifest: manifest.node_files())
    skipped = [f"node artifacts of {ref.partition}: {error}" for ref, error in pinned.errors.items()]
    found = [file for ref in refs for file in pinned.kept.get(ref, ())]
    waiting = _offers(found, destinations, skipped)
    if not waiting:
        return NodeFetch(skipped=tuple(skipped), signers=pinned.signers)
    options = options or FetchOptions()
    # Also where nothing will be copied: what is there already may have come from a tool of this node.
    permit = permit_copies(cache_root, trust.policy, pinned.signers)
    keeping = _Keeping(
        blobs=Blobs(backend=documents.backend, permit=permit, shared=options.shared),
        index=DigestIndex(cache_root, INDEX_NAME, reread=options.reread),
        beat=options.beat,
    )
    taken = _take(waiting, skipped, keeping.keep)
    keeping.index.save()
    return NodeFetch(
        files=taken,
        num_copied=len(keeping.copied),
        bytes_copied=sum(digest.size_bytes for digest in keeping.copied),
        skipped=tuple(skipped),
        signers=pinned.signers,
        copies=tuple(
            NewFile(
                name=blob_name(digest.sha256), source=kept_path(cache_root, digest.sha256), expected=digest
            )
            for digest in dict.fromkeys(file.digest for file in taken)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keeping:
    """Brings blobs among the kept files of a cache directory, and notes which were ``copied``."""

    blobs: Blobs
    index: DigestIndex
    beat: Callable[[], None]
    copied: dict[Digest, None] = field(default_factory=dict)

    def keep(self, digests: Iterable[Digest]) -> dict[Digest, StoreError]:
        """Keep blobs, and return why some cannot be kept."""
        absent = []
        for digest in dict.fromkeys(digests):
            if path := find_kept(self.blobs.permit.root, digest, digest_of=self.index.digest):
                note_use(path)
            else:
                absent.append(digest)
        faults = blob_faults(self.blobs.backend, absent)
        copyable = [digest for digest in absent if digest not in faults]
        answers = each(lambda digest: outcome_of(lambda: self._copy(digest)), copyable, num_threads=READERS)
        faults |= {digest: error for digest, error in zip(copyable, answers, strict=True) if error}
        self.copied.update(dict.fromkeys(digest for digest in copyable if digest not in faults))
        return faults

    def _copy(self, digest: Digest) -> None:
        cache_root = self.blobs.permit.root
        staged = temporary_kept(cache_root)
        try:
            self.blobs.copy(digest, staged, lambda _: self.beat())
            self.index.remember_own(place_kept(cache_root, staged, digest), digest)
        finally:
            staged.unlink(missing_ok=True)


def _offers(
    files: Iterable[NodeFile], destinations: Destinations, left_out: list[str]
) -> dict[_Unit, list[_Offer]]:
    """The offers of each unit, in their order; why some are not taken goes to ``left_out``."""
    strange: Counter[str] = Counter()
    by_unit: dict[_Unit, dict[str, _Offer]] = {}
    for file in files:
        destination = destinations.get(file.cache)
        if destination is None or not destination.takes(file.relative):
            strange[file.cache] += 1
            continue
        unit, offer = (file.cache, file.relative), file.digest.sha256
        if destination.in_sets:
            artifact, conditions, offer = (*file.relative.split("/", _SET_PARTS), "", "")[:_SET_PARTS]
            unit = (file.cache, f"{artifact}/{conditions}")
        by_unit.setdefault(unit, {}).setdefault(offer, {}).setdefault(file.relative, file)
    left_out += [
        f"node/{name}: {count_text(number, 'file')}, of which this node's config declares "
        "no directory or no pattern"
        for name, number in sorted(strange.items())
    ]
    return {unit: list(offers.values()) for unit, offers in by_unit.items()}


def _take(
    waiting: dict[_Unit, list[_Offer]],
    left_out: list[str],
    keep: Callable[[list[Digest]], Mapping[Digest, StoreError]],
) -> tuple[NodeFile, ...]:
    """Take of each unit the first offer that can be had whole; ``keep`` says why blobs cannot be kept."""
    taken: dict[str, NodeFile] = {}
    while waiting:
        asked = _next_offers(waiting, taken, left_out)
        faults = keep([file.digest for offer in asked.values() for file in offer.values()]) if asked else {}
        for unit, offer in asked.items():
            failed = [file for file in offer.values() if file.digest in faults]
            left_out += [f"{file.path}: {faults[file.digest]}" for file in failed]
            if failed:
                continue
            waiting.pop(unit, None)
            together = taken | {file.path: file for file in offer.values()}
            if bad := dict(collisions(together)):
                left_out += [f"{path}: {fault}" for path, fault in bad.items()]
            else:
                taken = together
    return tuple(taken.values())


def _next_offers(
    waiting: dict[_Unit, list[_Offer]], taken: Mapping[str, NodeFile], left_out: list[str]
) -> dict[_Unit, _Offer]:
    """Of each unit that waits the next offer, as far as there is room for it beside what was taken."""
    asked: dict[_Unit, _Offer] = {}
    num_files, size_bytes = len(taken), _size_of(taken.values())
    for unit in list(waiting):
        offer = waiting[unit].pop(0)
        if not waiting[unit]:
            del waiting[unit]
        files, more_bytes = num_files + len(offer), size_bytes + _size_of(offer.values())
        if files > MAX_FILES or more_bytes > MAX_BYTES:
            why = f"more than {MAX_FILES} files or {MAX_BYTES} bytes for one node"
            left_out.append(f"node/{unit[0]}/{unit[1]}: {why}")
        else:
            num_files, size_bytes, asked[unit] = files, more_bytes, offer
    return asked


def _size_of(files: Iterable[NodeFile]) -> int:
    return sum(digest.size_bytes for digest in {file.digest for file in files})


def _sources_of_each_set(documents: Documents, refs: Iterable[PartitionRef]) -> tuple[PartitionRef, ...]:
    """The source of the first rank of each set of artifacts; ``refs`` are in the order of their ranks."""
    sources: dict[PartitionRef, None] = {}
    known: set[str] = set()
    source: PartitionRef | None = None
    for ref, (artifacts, has_files) in _look(documents, list(refs)).items():
        source = ref if has_files else source
        if artifacts not in known and source is not None:
            known.add(artifacts)
            sources[source] = None
    return tuple(sources)


def _nearest_below(
    documents: Documents, by_rank: Mapping[int, PartitionRef], rank: int
) -> tuple[PartitionRef, ...]:
    lower = range(rank - 1, max(-1, rank - 1 - MAX_NODE_RANKS), -1)
    below = [by_rank[other] for other in lower if other in by_rank]
    for start in range(0, len(below), READERS):
        for ref, (_, has_files) in _look(documents, below[start : start + READERS]).items():
            if has_files:
                return (ref,)
    return ()


def _look(documents: Documents, refs: Sequence[PartitionRef]) -> dict[PartitionRef, tuple[str, bool]]:
    """Of manifests that can be read the key of their artifacts, and whether they have node artifacts."""
    kept = take_pinned(
        documents, refs, lambda _, found: (artifacts_key(found), bool(found.node_files()))
    ).kept
    return {ref: kept[ref] for ref in refs if ref in kept}
