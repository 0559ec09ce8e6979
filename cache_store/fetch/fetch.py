"""Fetching: bytes out of the store into a node's cache directory.

Every blob is read once, whatever the number of partitions that want it; nothing of a partition gets its name
before all of it is verified; what is in the cache directory already is verified, and not copied. One
partition's fault is its own.

Layout on the way: ``<cache root>/.tmp-<unique>/<n>/compiled_module[.N]``, companions under their own names,
where ``n`` counts the functions: one rename brings all variants of a function that is new.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.local import (
    find_file,
    is_companion_name,
    place_directory,
    place_file,
    temporary_file,
    variant_name,
)
from warmrank.cache_store.cache_dir.marks import admit, permit_copies
from warmrank.cache_store.cache_dir.private_files import (
    date_back,
    digest_private,
    make_directories_below,
    make_private_directories,
    os_errors_are_unusable,
    staging_directory,
    sweep_debris,
)
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, UnusableCache, outcome_of
from warmrank.cache_store.fetch.blobs import (
    Blobs,
    CountBytes,
    FetchOptions,
    blob_faults,
    clone,
    take_pinned,
)
from warmrank.cache_store.gc.trash import bring_back
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.parallel import SHORT_BYTES, Meter, Progress, each, nothing
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import CaptureEntry, PartitionManifest, PartitionRef
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
INDEX_NAME = "artifacts"
NUM_THREADS = 8
STAGING = ".tmp-"
_NUM_SHARES = 64  # to look for one file takes less time than to hand it to a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """One partition that was laid out."""

    partition: str
    num_files: int  # artifacts in its manifest, all of which now lie in the cache directory
    bytes_copied: int  # of those that were not there before
    num_already_there: int  # verified
    captures: tuple[CaptureEntry, ...] = ()  # the capture plan of its manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFault:
    """A partition of which nothing was laid out, and why."""

    ref: PartitionRef
    error: StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutcome:
    """Outcome of fetching several partitions; in the order in which they were asked for."""

    partitions: tuple[FetchReport, ...] = ()  # those laid out
    faults: tuple[FetchFault, ...] = ()  # the others
    bytes_read: int = 0  # out of the store: of each blob once, whatever the number of its copies
    bytes_brought: int = 0  # from another node
    copies: tuple[NewFile, ...] = ()  # a verified private copy of each blob that was laid out, read or not


@dataclass(frozen=True, slots=True)
class _Target:
    """Bytes that a function's directory shall hold."""

    function_dir: str  # posix path relative to the cache directory
    digest: Digest
    name: str = ""  # of a companion; a variant gets the next number there

    def __hash__(self) -> int:
        # Asked for a dozen times for each of thousands of files, so not of all that the digest says.
        return hash((self.function_dir, self.digest.sha256))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """One partition that is asked for: its targets, and the function that each is of."""

    ref: PartitionRef
    functions: Mapping[_Target, str]
    captures: tuple[CaptureEntry, ...]

    def fault(self, faults: Mapping[_Target, StoreError]) -> StoreError | None:
        """Error for a partition that cannot be laid out; names all blobs that are missing."""
        errors = {target: faults[target] for target in self.functions if target in faults} if faults else {}
        for error in errors.values():
            if not isinstance(error, NotInStore):
                return error
        if not errors:
            return None
        missing = (f"{target.digest.sha256[:12]} of {self.functions[target]}" for target in errors)
        return NotInStore(what=f"blobs {', '.join(missing)}", where=self.ref.partition)

    def report(self, copied: Collection[_Target]) -> FetchReport:
        """The report on this partition, of whose targets ``copied`` were not there before."""
        mine = [target for target in self.functions if target in copied]
        return FetchReport(
            partition=self.ref.partition,
            num_files=len(self.functions),
            bytes_copied=_size_of(target.digest for target in mine),
            num_already_there=len(self.functions) - len(mine),
            captures=self.captures,
        )


def fetch_blob(
    documents: Documents, sha256: str, function_dir: Path, *, cache_root: Path, beside: str = ""
) -> Path:
    """Add one blob to the variants of a function below ``cache_root``, or as the companion ``beside`` them.

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
    if info is not None and info.content_bytes is not None:
        wanted = Digest(sha256=sha256, size_bytes=info.content_bytes)
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
    known: dict[_Target, _Target] = {}
    pinned = take_pinned(
        documents,
        refs,
        lambda ref, found: _Partition(
            ref=ref, functions=_targets_of(found.manifest, known), captures=found.manifest.captures
        ),
    )
    partitions = tuple(pinned.kept.values())
    index = DigestIndex(cache_root, INDEX_NAME, reread=options.reread)
    targets = dict.fromkeys(target for partition in partitions for target in partition.functions)
    found = _look(list(targets), cache_root, index, options.beat)
    absent = [target for target, answer in found.items() if answer is None]
    missing = blob_faults(documents.backend, (target.digest for target in absent))
    faults = {target: answer for target, answer in found.items() if isinstance(answer, StoreError)}
    faults |= {target: missing[target.digest] for target in absent if target.digest in missing}
    paths = {target: answer for target, answer in found.items() if isinstance(answer, Path)}
    copied: dict[_Target, Path] = {}
    brought: set[Digest] = set()
    reached(Step.FETCH_CHECKED)
    if wanted := _without_faults(partitions, absent, faults):
        permit = permit_copies(cache_root, documents.trust.policy, pinned.signers)
        meter = _meter(cache_root, wanted, options, clock)
        blobs = Blobs(backend=documents.backend, permit=permit, shared=options.shared)
        with staging_directory(cache_root, STAGING) as directory:
            staged = _Staging(cache_root, directory, wanted)
            faults |= staged.fill(blobs.copy, meter.count)
            reached(Step.FETCH_STAGED)
            copied, failed = staged.place(_without_faults(partitions, absent, faults), index)
            faults |= failed
        meter.finish()
        brought = {target.digest for target in copied} & blobs.brought
    index.save()
    reached(Step.FETCH_DONE)
    outcome = FetchOutcome(
        partitions=_reports(partitions, faults, copied),
        faults=(
            *(FetchFault(ref=ref, error=error) for ref, error in pinned.errors.items()),
            *(FetchFault(ref=part.ref, error=error) for part in partitions if (error := part.fault(faults))),
        ),
        bytes_read=_size_of({target.digest for target in copied} - brought),
        bytes_brought=_size_of(brought),
        copies=_copies(_without_faults(partitions, list(targets), faults), paths | copied),
    )
    logger.info(
        "Fetched %d partitions into %s: %d files, %d bytes copied, %d bytes read, %.3f s",
        len(outcome.partitions),
        cache_root,
        sum(report.num_files for report in outcome.partitions),
        sum(report.bytes_copied for report in outcome.partitions),
        outcome.bytes_read,
        clock() - started_s,
    )
    for fault in outcome.faults:
        logger.warning("Partition %s is not laid out: %s", fault.ref.partition, fault.error)
    return outcome


def replicate(manifests: Sequence[PartitionManifest], files: Mapping[str, Path], root: Path) -> int:
    """Make the files that partitions lack below the cache directory ``root``; return how many lacked any.

    ``files`` has a private file for each sha256 that the manifests name.
    """
    known: dict[_Target, _Target] = {}
    wanted = [_targets_of(manifest, known) for manifest in manifests]
    for expected in dict.fromkeys(target.digest for target in known):
        path = files[expected.sha256]
        with os_errors_are_unusable("file", path):
            actual = digest_private(path)
        if actual != expected:
            raise Corrupt.since_made(path, expected, actual, again="build")
    index = DigestIndex(root, INDEX_NAME, reread=True)
    found = _look(list(known), root, index, nothing)
    absent = [target for target, answer in found.items() if answer is None]
    faults = {target: answer for target, answer in found.items() if isinstance(answer, StoreError)}

    def copy(digest: Digest, path: Path, count: CountBytes) -> None:
        clone(files[digest.sha256], path, count)

    with staging_directory(root, STAGING) as directory:
        staged = _Staging(root, directory, absent)
        faults |= staged.fill(copy, nothing)
        placed, failed = staged.place([target for target in absent if target not in faults], index)
    for error in (faults | failed).values():
        raise error
    return sum(any(target in placed for target in targets) for targets in wanted)


def _targets_of(manifest: PartitionManifest, known: dict[_Target, _Target]) -> dict[_Target, str]:
    """The files that a manifest asks for, and their functions; equal bytes are one, though named twice.

    Node artifacts are none of them: they come by themselves, once a node (`node_artifacts`). The ``known``
    targets of other partitions are shared, because there may be millions.
    """
    functions: dict[_Target, str] = {}
    for entry in manifest.artifacts:
        if entry.scope == "node":
            continue
        function_dir, _, name = entry.path.rpartition("/")
        target = _Target(function_dir, entry.digest, name if is_companion_name(name) else "")
        functions.setdefault(known.setdefault(target, target), sys.intern(entry.function))
    return functions


def _without_faults(
    partitions: Sequence[_Partition], targets: Sequence[_Target], faults: Mapping[_Target, StoreError]
) -> list[_Target]:
    """Targets, in their order, of partitions that have no fault."""
    whole = {target for part in partitions if not part.fault(faults) for target in part.functions}
    return [target for target in targets if target in whole]


def _look(
    targets: Sequence[_Target], cache_root: Path, index: DigestIndex, beat: Callable[[], None]
) -> dict[_Target, Path | StoreError | None]:
    """Find where the cache directory has targets; that may take long where it has to be read."""

    def look(some: Sequence[_Target]) -> list[Path | StoreError | None]:
        found = []
        for target in some:
            function_dir = cache_root / target.function_dir
            find = functools.partial(find_file, beside=target.name, digest_of=index.digest)
            found.append(outcome_of(functools.partial(find, function_dir, target.digest)))
            beat()
        return found

    shares = [targets[number::_NUM_SHARES] for number in range(_NUM_SHARES)]
    is_small = _size_of(target.digest for target in targets) <= len(targets) * SHORT_BYTES
    answers = each(look, shares, num_threads=NUM_THREADS, size_bytes=0 if is_small else None)
    found = dict(zip(itertools.chain(*shares), itertools.chain(*answers), strict=True))
    return {target: found[target] for target in targets}


def _meter(
    cache_root: Path, wanted: Sequence[_Target], options: FetchOptions, clock: Callable[[], float]
) -> Meter:
    def tell(progress: Progress) -> None:
        options.beat()
        if options.on_progress is not None:
            options.on_progress(progress)

    return Meter(
        f"Fetching into {cache_root}",
        total_bytes=_size_of(target.digest for target in wanted),
        total_files=len(wanted),
        on_progress=tell,
        clock=clock,
    )


def _reports(
    partitions: Sequence[_Partition], faults: Mapping[_Target, StoreError], copied: Iterable[_Target]
) -> tuple[FetchReport, ...]:
    """Reports on whole partitions; what two share came with the first."""
    reports: list[FetchReport] = []
    left = set(copied)
    for partition in partitions:
        if not partition.fault(faults):
            reports.append(partition.report(left))
            left -= partition.functions.keys()
    return tuple(reports)


def _copies(targets: Sequence[_Target], paths: Mapping[_Target, Path]) -> tuple[NewFile, ...]:
    copies = {target.digest: paths[target] for target in targets}
    return tuple(
        NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
        for digest, path in copies.items()
    )


def _size_of(digests: Iterable[Digest]) -> int:
    return sum(digest.size_bytes for digest in digests)


def _by_function_dir(targets: Iterable[_Target]) -> dict[str, list[_Target]]:
    """Targets by their function's directory, in their order; companions before what needs them."""
    found: dict[str, list[_Target]] = {}
    for target in sorted(targets, key=lambda target: not target.name):
        found.setdefault(target.function_dir, []).append(target)
    return found


class _Staging:
    """A directory where ``targets`` are made before they get their names."""

    def __init__(self, cache_root: Path, directory: Path, targets: Collection[_Target]) -> None:
        self._cache_root = cache_root
        self._directories: dict[str, Path] = {}
        self._num_planned: dict[str, int] = {}
        self._paths: dict[_Target, Path] = {}
        for number, (function_dir, mine) in enumerate(_by_function_dir(targets).items()):
            self._directories[function_dir] = directory / str(number)
            self._num_planned[function_dir] = len(mine)
            numbers = itertools.count()
            for target in mine:
                name = target.name or variant_name(next(numbers))
                self._paths[target] = self._directories[function_dir] / name

    def fill(
        self, copy: Callable[[Digest, Path, CountBytes], object], count: Callable[..., object]
    ) -> dict[_Target, StoreError]:
        """Make everything by ``copy``, which verifies, and copies of that; return why others are not made."""
        for directory in self._directories.values():
            with os_errors_are_unusable("directory", directory):
                make_private_directories(directory)
        copies_of: dict[Digest, list[_Target]] = {}
        for target in self._paths:
            copies_of.setdefault(target.digest, []).append(target)

        def make(targets: list[_Target]) -> dict[_Target, StoreError]:
            faults: dict[_Target, StoreError] = {}
            first, *others = targets
            origin = self._paths[first]
            made = outcome_of(lambda: copy(first.digest, origin, count))
            if isinstance(made, StoreError):
                return dict.fromkeys(targets, made)
            count(0, num_files=1)
            for target in others:
                try:
                    clone(origin, self._paths[target], count)
                except UnusableCache as error:
                    faults[target] = error
                else:
                    count(0, num_files=1)
            return faults

        # The most bytes first, so that the last thread ends early.
        groups = sorted(copies_of.values(), key=lambda group: -group[0].digest.size_bytes * len(group))
        found = each(make, groups, num_threads=NUM_THREADS, size_bytes=_size_of(copies_of))
        return {target: error for faults in found for target, error in faults.items()}

    def place(
        self, targets: Collection[_Target], index: DigestIndex
    ) -> tuple[dict[_Target, Path], dict[_Target, StoreError]]:
        """Give staged ``targets`` their names; return where they are, and why others are not placed."""
        placed: dict[_Target, Path] = {}
        faults: dict[_Target, StoreError] = {}
        ready: set[Path] = set()
        for function_dir, mine in _by_function_dir(targets).items():
            target_dir = self._cache_root / function_dir
            try:
                with os_errors_are_unusable("directory", target_dir):
                    for target in mine:
                        date_back(self._paths[target])
                if target_dir.parent not in ready:
                    make_directories_below(self._cache_root, target_dir.parent)
                    ready.add(target_dir.parent)
                found = self._place(target_dir, mine, index)
            except (Corrupt, UnusableCache) as error:
                faults.update(dict.fromkeys(mine, error))
                continue
            for target, path in found.items():
                index.remember_own(path, target.digest)
            placed.update(found)
            reached(Step.FETCH_PLACED)
        return placed, faults

    def _place(self, function_dir: Path, targets: list[_Target], index: DigestIndex) -> dict[_Target, Path]:
        planned = targets[0].function_dir
        is_whole = len(targets) == self._num_planned[planned]
        if is_whole and place_directory(function_dir, self._directories[planned]):
            return {target: function_dir / self._paths[target].name for target in targets}
        make_directories_below(self._cache_root, function_dir)
        place = functools.partial(place_file, function_dir, digest_of=index.digest)
        return {target: place(self._paths[target], target.digest, beside=target.name) for target in targets}
