"""Fetching: bytes out of the store into a node's cache directory.

Every blob is read once, whatever the number of partitions that want it; nothing of a partition gets its name
before all of it is verified; what is in the cache directory already is verified, and not copied. One
partition's fault is its own.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.local import find_file, place_file, temporary_file
from warmrank.cache_store.cache_dir.marks import admit, permit_copies
from warmrank.cache_store.cache_dir.private_files import make_directories_below, sweep_debris
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import NotInStore, StoreError, UnusableCache
from warmrank.cache_store.fetch.blobs import Blobs, FetchOptions, blob_faults
from warmrank.cache_store.fetch.manifests import take_pinned
from warmrank.cache_store.fetch.staging import (
    NUM_THREADS,
    STAGING,
    FetchFault,
    FetchOutcome,
    FetchReport,
    Partition,
    Target,
    partition_of,
    staging,
)
from warmrank.cache_store.gc.trash import bring_back
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.parallel import SHORT_BYTES, each
from warmrank.cache_store.progress import Meter, Progress, nothing
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
INDEX_NAME = "artifacts"
_NUM_SHARES = 64  # to look for one file takes less time than to hand it to a thread


def fetch_blob(
    documents: Documents, sha256: str, function_dir: Path, *, cache_root: Path, beside: str = ""
) -> Path:
    """Add one blob to the variants of a function below ``cache_root``, or as the file ``beside`` them.

    Raises:
        NotInStore: there is no such blob.
        Corrupt: its bytes are not what its name says; it is in quarantine.
    """
    name = blob_name(sha256)
    backend, trust = documents.backend, documents.trust
    # A rank fetches many; its opening looked below.
    admit(cache_root, trust.policy, trust.revoked, below=False)
    info = backend.stat([name]).get(name)
    if info is None and name not in bring_back(backend, [name]):
        raise NotInStore(what=f"blob {sha256[:12]}", where=name)
    size_bytes = info.content_bytes if info else None
    if size_bytes is not None:
        wanted = Digest(sha256=sha256, size_bytes=size_bytes)
        if (known := find_file(function_dir, wanted, beside=beside)) is not None:
            return known
    # Whose word named the blob is not known here, so it may have been any key's that is believed.
    permit = permit_copies(cache_root, trust.policy, trust.believed)
    make_directories_below(cache_root, function_dir)
    staged = temporary_file(function_dir)
    # Of whatever size: one that a place tells may be that of a damaged copy, before a good one in the next.
    digest = Blobs(backend=backend, permit=permit).copy_stored(sha256, None, staged, nothing)
    return place_file(function_dir, staged, digest, beside=beside)


def fetch_partitions(
    documents: Documents,
    refs: Sequence[PartitionRef],
    cache_root: Path,
    *,
    options: FetchOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FetchOutcome:
    """Lay out all artifacts of the partitions that ``refs`` name below ``cache_root``.

    Of one function, an earlier partition's artifacts are tried first.
    """
    started_s, options = clock(), options or FetchOptions()
    admit(cache_root, documents.trust.policy, documents.trust.revoked)
    sweep_debris(cache_root, STAGING)
    known: dict[Target, Target] = {}
    pinned = take_pinned(documents, refs, lambda ref, manifest: partition_of(ref, manifest, known))
    index = DigestIndex.open(cache_root, INDEX_NAME, reread=options.reread)
    job = _look(tuple(pinned.kept.values()), cache_root, index, options.beat)
    missing = blob_faults(documents.backend, (target.digest for target in job.absent))
    job.faults |= {target: missing[target.digest] for target in job.absent if target.digest in missing}
    reached(Step.FETCH_CHECKED)
    if wanted := job.wanted():
        permit = permit_copies(cache_root, documents.trust.policy, pinned.signers)
        meter = _meter(cache_root, wanted, options, clock)
        blobs = Blobs(backend=documents.backend, permit=permit, shared=options.shared)
        with staging(permit, wanted) as staged:
            job.faults |= staged.fill(blobs, meter)
            reached(Step.FETCH_STAGED)
            job.copied, failed = staged.place(job.wanted(), index)
            job.faults |= failed
            job.brought = blobs.brought
        meter.finish()
    index.save()
    reached(Step.FETCH_DONE)
    outcome = _outcome(job, pinned.errors, seconds=clock() - started_s)
    _log(outcome, cache_root)
    return outcome


@dataclass(slots=True, kw_only=True)
class _Job:
    """How far a fetch is."""

    partitions: Sequence[Partition]  # what was asked for, and can be had
    absent: Sequence[Target]  # what the cache directory lacks
    standing: Mapping[Target, Path]  # the others
    copied: dict[Target, Path] = field(default_factory=dict)
    brought: set[Digest] = field(default_factory=set)  # blobs that came from another node
    faults: dict[Target, StoreError]

    def wanted(self) -> list[Target]:
        """The absent targets of the partitions that have no fault, in their order."""
        whole = self.whole()
        return [target for target in self.absent if target in whole]

    def whole(self) -> set[Target]:
        """All targets of the partitions that have no fault."""
        partitions = (partition for partition in self.partitions if not partition.fault(self.faults))
        return {target for partition in partitions for target in partition.functions}


def _look(
    partitions: Sequence[Partition], cache_root: Path, index: DigestIndex, beat: Callable[[], None]
) -> _Job:
    """See what the cache directory has; that may take long where it has to be read."""
    targets = list(dict.fromkeys(target for partition in partitions for target in partition.functions))

    def look(some: Sequence[Target]) -> list[tuple[Target, Path | UnusableCache | None]]:
        found = []
        for target in some:
            found.append((target, _look_for(target, cache_root, index)))
            beat()
        return found

    shares = [targets[number::_NUM_SHARES] for number in range(_NUM_SHARES)]
    is_small = sum(target.digest.size_bytes for target in targets) <= len(targets) * SHORT_BYTES
    looks = each(look, shares, num_threads=NUM_THREADS, size_bytes=0 if is_small else None)
    found = dict(itertools.chain.from_iterable(looks))
    return _Job(
        partitions=partitions,
        absent=[target for target in targets if found[target] is None],
        standing={target: answer for target, answer in found.items() if isinstance(answer, Path)},
        faults={target: answer for target, answer in found.items() if isinstance(answer, UnusableCache)},
    )


def _look_for(target: Target, cache_root: Path, index: DigestIndex) -> Path | UnusableCache | None:
    function_dir = cache_root / target.function_dir
    try:
        return find_file(function_dir, target.digest, beside=target.name, digest_of=index.digest)
    except UnusableCache as error:
        return error


def _meter(
    cache_root: Path, wanted: Sequence[Target], options: FetchOptions, clock: Callable[[], float]
) -> Meter:
    def tell(progress: Progress) -> None:
        options.beat()
        if options.on_progress is not None:
            options.on_progress(progress)

    return Meter(
        f"Fetching into {cache_root}",
        total_bytes=sum(target.digest.size_bytes for target in wanted),
        total_files=len(wanted),
        on_progress=tell,
        clock=clock,
    )


def _outcome(job: _Job, refused: Mapping[PartitionRef, StoreError], *, seconds: float) -> FetchOutcome:
    reports: list[FetchReport] = []
    failed = [FetchFault(ref=ref, error=error) for ref, error in refused.items()]
    left = set(job.copied)
    for partition in job.partitions:
        if error := partition.fault(job.faults):
            failed.append(FetchFault(ref=partition.ref, error=error))
            continue
        reports.append(partition.report(left))
        left -= partition.functions.keys()  # what two partitions share came with the first
    whole, paths = job.whole(), {**job.standing, **job.copied}
    copies = {target.digest: path for target, path in paths.items() if target in whole}
    copied = {target.digest for target in job.copied}
    return FetchOutcome(
        partitions=tuple(reports),
        faults=tuple(failed),
        bytes_read=_size_of(copied - job.brought),
        bytes_brought=_size_of(copied & job.brought),
        copies=tuple(
            NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
            for digest, path in copies.items()
        ),
        seconds=seconds,
    )


def _size_of(digests: Iterable[Digest]) -> int:
    return sum(digest.size_bytes for digest in digests)


def _log(outcome: FetchOutcome, cache_root: Path) -> None:
    logger.info(
        "Fetched %d partitions into %s: %d files, %d bytes copied, %d bytes read, %.3f s",
        len(outcome.partitions),
        cache_root,
        sum(report.num_files for report in outcome.partitions),
        sum(report.bytes_copied for report in outcome.partitions),
        outcome.bytes_read,
        outcome.seconds,
    )
    for fault in outcome.faults:
        logger.warning("Partition %s is not laid out: %s", fault.ref.partition, fault.error)
