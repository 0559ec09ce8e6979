"""Fetching: bytes out of the store into a node's cache directory.

Every blob is read once, whatever the number of partitions that want it; nothing of a partition gets its name
before all of it is verified; what is in the cache directory already is verified, and not copied. One
partition's fault is its own.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.local import find_file, place_file, temporary_file
from warmrank.cache_store.cache_dir.marks import admit, permit_copies
from warmrank.cache_store.cache_dir.private_files import make_directories_below, sweep_debris
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import NotInStore, StoreError, outcome_of
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
    partitions = tuple(pinned.kept.values())
    index = DigestIndex(cache_root, INDEX_NAME, reread=options.reread)
    found = _look(partitions, cache_root, index, options.beat)
    absent = [target for target, answer in found.items() if answer is None]
    missing = blob_faults(documents.backend, (target.digest for target in absent))
    faults = {target: answer for target, answer in found.items() if isinstance(answer, StoreError)}
    faults |= {target: missing[target.digest] for target in absent if target.digest in missing}
    paths = {target: answer for target, answer in found.items() if isinstance(answer, Path)}
    copied: dict[Target, Path] = {}
    blobs = None
    reached(Step.FETCH_CHECKED)
    if wanted := _without_faults(partitions, absent, faults):
        permit = permit_copies(cache_root, documents.trust.policy, pinned.signers)
        meter = _meter(cache_root, wanted, options, clock)
        blobs = Blobs(backend=documents.backend, permit=permit, shared=options.shared)
        with staging(permit, wanted) as staged:
            faults |= staged.fill(blobs, meter)
            reached(Step.FETCH_STAGED)
            copied, failed = staged.place(_without_faults(partitions, absent, faults), index)
            faults |= failed
        meter.finish()
    index.save()
    reached(Step.FETCH_DONE)
    brought = {target.digest for target in copied} & (blobs.brought if blobs else set())
    reports, failed_refs, copies = _outcomes(partitions, faults, paths | copied, copied)
    outcome = FetchOutcome(
        partitions=reports,
        faults=(*(FetchFault(ref=ref, error=error) for ref, error in pinned.errors.items()), *failed_refs),
        bytes_read=_size_of({target.digest for target in copied} - brought),
        bytes_brought=_size_of(brought),
        copies=copies,
        seconds=clock() - started_s,
    )
    _log(outcome, cache_root)
    return outcome


def _without_faults(
    partitions: Sequence[Partition], targets: Sequence[Target], faults: Mapping[Target, StoreError]
) -> list[Target]:
    """Those targets, in their order, of partitions that have no fault."""
    whole = {target for found in partitions if not found.fault(faults) for target in found.functions}
    return [target for target in targets if target in whole]


def _look(
    partitions: Sequence[Partition], cache_root: Path, index: DigestIndex, beat: Callable[[], None]
) -> dict[Target, Path | StoreError | None]:
    """See where the cache directory has all targets; that may take long where it has to be read."""
    targets = list(dict.fromkeys(target for partition in partitions for target in partition.functions))

    def look(some: Sequence[Target]) -> list[Path | StoreError | None]:
        found = []
        for target in some:
            function_dir = cache_root / target.function_dir
            find = functools.partial(find_file, beside=target.name, digest_of=index.digest)
            found.append(outcome_of(functools.partial(find, function_dir, target.digest)))
            beat()
        return found

    shares = [targets[number::_NUM_SHARES] for number in range(_NUM_SHARES)]
    is_small = sum(target.digest.size_bytes for target in targets) <= len(targets) * SHORT_BYTES
    answers = each(look, shares, num_threads=NUM_THREADS, size_bytes=0 if is_small else None)
    found = dict(zip(itertools.chain(*shares), itertools.chain(*answers), strict=True))
    return {target: found[target] for target in targets}


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


def _outcomes(
    partitions: Sequence[Partition],
    faults: Mapping[Target, StoreError],
    paths: Mapping[Target, Path],
    copied: Iterable[Target],
) -> tuple[tuple[FetchReport, ...], tuple[FetchFault, ...], tuple[NewFile, ...]]:
    """Reports on whole partitions, faults of the others, and a copy of each blob of the whole ones."""
    reports: list[FetchReport] = []
    failed: list[FetchFault] = []
    copies: dict[Digest, Path] = {}
    left = set(copied)
    for partition in partitions:
        if error := partition.fault(faults):
            failed.append(FetchFault(ref=partition.ref, error=error))
            continue
        reports.append(partition.report(left))
        left -= partition.functions.keys()  # what two partitions share came with the first
        copies |= {target.digest: paths[target] for target in partition.functions}
    files = (
        NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
        for digest, path in copies.items()
    )
    return tuple(reports), tuple(failed), tuple(files)


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
