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
from typing import NamedTuple

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.local import (
    find_file,
    is_companion_name,
    place_directory,
    place_file,
    variant_name,
)
from warmrank.cache_store.cache_dir.marks import admit, permit_copies
from warmrank.cache_store.cache_dir.private_files import (
    WRITING,
    date_back,
    digest_private,
    make_directories_below,
    make_private_directories,
    os_errors_are_unusable,
    staging_directory,
    sweep_debris,
    temporary_path,
)
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, UnusableCache, is_final, outcome_of
from warmrank.cache_store.fetch.blobs import Blobs, FetchOptions, clone, missing_blobs, take_pinned
from warmrank.cache_store.gc.inventory import bring_back
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.parallel import Meter, each, nothing
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import CaptureEntry, PartitionManifest, PartitionRef
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
_INDEX = "artifacts"
_NUM_THREADS = 8


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
    refs: tuple[PartitionRef, ...] = ()  # to the manifests of those
    faults: tuple[FetchFault, ...] = ()  # the others
    bytes_read: int = 0  # out of the store: of each blob once, whatever the number of its copies
    bytes_brought: int = 0  # from another node
    copies: tuple[NewFile, ...] = ()  # a verified private copy of each blob that was laid out, read or not


class _Target(NamedTuple):
    """Bytes that a function's directory shall hold."""

    function_dir: str  # posix path relative to the cache directory
    digest: Digest
    name: str  # of a companion; empty for a variant, which gets the next number there


class _Partition(NamedTuple):
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


def fetch_blob(
    documents: Documents, sha256: str, function_dir: Path, *, cache_root: Path, beside: str = ""
) -> Path:
    """Add one blob to the variants of a function below ``cache_root``, or as the companion ``beside`` them.

    Raises:
        NotInStore: there is no such blob.
        Corrupt: its bytes are not what its name says; it is in quarantine.
    """
    name = blob_name(sha256)
    places, trust = documents.places, documents.trust
    # A rank fetches many; its opening looked below.
    admit(cache_root, trust.policy, trust.revoked, below=False)
    info = places.stat([name]).get(name)
    if info is None and name not in bring_back(places, [name]):
        raise NotInStore(what=f"blob {sha256[:12]}", where=name)
    if info is not None and info.content_bytes is not None:
        wanted = Digest(sha256=sha256, size_bytes=info.content_bytes)
        if (known := find_file(function_dir, wanted, beside=beside)) is not None:
            return known
    # Whose word named the blob is not known here, so it may have been any key's that is believed.
    permit = permit_copies(cache_root, trust.policy, trust.believed)
    make_directories_below(cache_root, function_dir)
    staged = temporary_path(function_dir)
    # Of whatever size: one that a place tells may be that of a damaged copy, before a good one in the next.
    digest = Blobs(places=places, permit=permit).copy(sha256, None, staged)
    return place_file(function_dir, staged, digest, beside=beside)


def fetch_partitions(
    documents: Documents,
    refs: Sequence[PartitionRef],
    cache_root: Path,
    *,
    options: FetchOptions | None = None,
    distinct: Collection[PartitionRef] = (),
) -> FetchOutcome:
    """Lay out all artifacts of the partitions that ``refs`` name below ``cache_root``.

    Of one function, an earlier partition's artifacts are tried first. A ``distinct`` one is left out if one
    before it holds the same artifacts.
    """
    started_s, options = time.monotonic(), options or FetchOptions()
    admit(cache_root, documents.trust.policy, documents.trust.revoked)
    sweep_debris(cache_root, WRITING)
    known: dict[_Target, _Target] = {}
    pinned = take_pinned(
        documents,
        refs,
        lambda ref, found: _Partition(ref, _targets_of(found.manifest, known), found.manifest.captures),
    )
    partitions = _without_equals(list(pinned.kept.values()), frozenset(distinct))
    index = DigestIndex(cache_root, _INDEX, reread=options.reread)
    targets = dict.fromkeys(target for partition in partitions for target in partition.functions)
    paths, faults = _look(list(targets), cache_root, index)
    absent = [target for target in targets if target not in paths and target not in faults]
    missing = missing_blobs(documents.places, (target.digest for target in absent))
    faults |= {target: missing[target.digest] for target in absent if target.digest in missing}
    copied: dict[_Target, Path] = {}
    brought: set[Digest] = set()
    reached(Step.FETCH_CHECKED)
    if wanted := _without_faults(partitions, absent, faults):
        permit = permit_copies(cache_root, documents.trust.policy, pinned.signers)
        meter = Meter(
            f"Fetching into {cache_root}",
            total_bytes=_size_of(target.digest for target in wanted),
            total_files=len(wanted),
            on_progress=options.on_progress,
        )
        with staging_directory(cache_root) as directory:
            blobs = Blobs(
                places=documents.places,
                permit=permit,
                scratch=directory,
                shared=options.shared,
                count=meter.count,
            )
            staged = _staged_paths(directory, wanted)
            faults |= _fill(staged, blobs.copy, meter.count)
            reached(Step.FETCH_STAGED)
            copied, failed = _place(cache_root, staged, _without_faults(partitions, absent, faults), index)
            faults |= failed
        meter.finish()
        brought = {target.digest for target in copied} & blobs.brought
    index.save()
    reached(Step.FETCH_DONE)
    paths |= copied
    copies = {target.digest: paths[target] for target in _without_faults(partitions, targets, faults)}
    outcome = FetchOutcome(
        partitions=_reports(partitions, faults, copied),
        refs=tuple(part.ref for part in partitions if not part.fault(faults)),
        faults=(
            *(FetchFault(ref=ref, error=error) for ref, error in pinned.errors.items()),
            *(FetchFault(ref=part.ref, error=error) for part in partitions if (error := part.fault(faults))),
        ),
        bytes_read=_size_of({target.digest for target in copied} - brought),
        bytes_brought=_size_of(brought),
        copies=tuple(
            NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
            for digest, path in copies.items()
        ),
    )
    logger.info(
        "Fetched %d partitions into %s: %d files, %d bytes copied, %d bytes read, %.3f s",
        len(outcome.partitions),
        cache_root,
        sum(report.num_files for report in outcome.partitions),
        sum(report.bytes_copied for report in outcome.partitions),
        outcome.bytes_read,
        time.monotonic() - started_s,
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
    index = DigestIndex(root, _INDEX, reread=True)
    paths, faults = _look(list(known), root, index)
    absent = [target for target in known if target not in paths and target not in faults]
    with staging_directory(root) as directory:
        staged = _staged_paths(directory, absent)
        faults |= _fill(staged, lambda sha256, _, path: clone(files[sha256], path))
        placed, failed = _place(root, staged, [target for target in absent if target not in faults], index)
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
    partitions: Sequence[_Partition], targets: Iterable[_Target], faults: Mapping[_Target, StoreError]
) -> list[_Target]:
    """Targets, in their order, of partitions that have no fault."""
    whole = {target for part in partitions if not part.fault(faults) for target in part.functions}
    return [target for target in targets if target in whole]


def _look(
    targets: Sequence[_Target], cache_root: Path, index: DigestIndex
) -> tuple[dict[_Target, Path], dict[_Target, StoreError]]:
    """Targets that the cache directory has, and errors of others; slow where all has to be read."""

    def look(target: _Target) -> Path | StoreError | None:
        directory = cache_root / target.function_dir
        find = functools.partial(find_file, directory, target.digest, beside=target.name)
        return outcome_of(lambda: find(digest_of=index.digest))

    total_bytes = _size_of(target.digest for target in targets)
    answers = each(look, targets, num_threads=_NUM_THREADS, size_bytes=total_bytes)
    found = list(zip(targets, answers, strict=True))
    paths = {target: answer for target, answer in found if isinstance(answer, Path)}
    return paths, {target: answer for target, answer in found if isinstance(answer, StoreError)}


def _without_equals(
    partitions: Sequence[_Partition], distinct: Collection[PartitionRef]
) -> tuple[_Partition, ...]:
    """Leave out the distinct ones that hold the same artifacts as one before; node artifacts do not count."""
    if not distinct:
        return tuple(partitions)
    kept: list[_Partition] = []
    known: set[str] = set()  # digests, as the artifacts of all ranks together may be millions
    for part in partitions:
        artifacts = sorted([function, target.digest.sha256] for target, function in part.functions.items())
        key = digest_bytes(canonical_json(artifacts)).sha256
        if part.ref not in distinct or key not in known:
            kept.append(part)
        known.add(key)
    return tuple(kept)


def _reports(
    partitions: Sequence[_Partition], faults: Mapping[_Target, StoreError], copied: Iterable[_Target]
) -> tuple[FetchReport, ...]:
    """Reports on whole partitions; what two share came with the first."""
    reports: list[FetchReport] = []
    left = set(copied)
    for ref, functions, captures in (part for part in partitions if not part.fault(faults)):
        new = [target for target in functions if target in left]
        left.difference_update(new)
        reports.append(
            FetchReport(
                partition=ref.partition,
                num_files=len(functions),
                bytes_copied=_size_of(target.digest for target in new),
                num_already_there=len(functions) - len(new),
                captures=captures,
            )
        )
    return tuple(reports)


def _size_of(digests: Iterable[Digest]) -> int:
    return sum(digest.size_bytes for digest in digests)


def _by_function_dir(targets: Iterable[_Target]) -> dict[str, list[_Target]]:
    """Targets by their function's directory, in their order; companions before what needs them."""
    found: dict[str, list[_Target]] = {}
    for target in sorted(targets, key=lambda target: not target.name):
        found.setdefault(target.function_dir, []).append(target)
    return found


def _staged_paths(directory: Path, targets: Collection[_Target]) -> dict[_Target, Path]:
    """Paths in a staging directory where targets are made before they get their names."""
    paths: dict[_Target, Path] = {}
    for position, mine in enumerate(_by_function_dir(targets).values()):
        numbers = itertools.count()
        for target in mine:
            paths[target] = directory / str(position) / (target.name or variant_name(next(numbers)))
    return paths


def _fill(
    staged: Mapping[_Target, Path],
    copy: Callable[[str, int, Path], object],
    count: Callable[[int, int], object] = nothing,
) -> dict[_Target, StoreError]:
    """Make the staged files by ``copy``, which verifies, and copies of that; return faults of others."""
    copies_of: dict[Digest, list[_Target]] = {}
    for target, path in staged.items():
        copies_of.setdefault(target.digest, []).append(target)
        with os_errors_are_unusable("directory", path.parent):
            make_private_directories(path.parent)

    def make(targets: list[_Target]) -> dict[_Target, StoreError]:
        faults: dict[_Target, StoreError] = {}
        first, *others = targets
        try:
            copy(*first.digest, staged[first])
        except StoreError as error:
            if is_final(error):
                raise
            return dict.fromkeys(targets, error)
        for target in others:
            try:
                clone(staged[first], staged[target], lambda num_bytes: count(num_bytes, 0))
            except UnusableCache as error:
                faults[target] = error
        count(0, len(targets) - len(faults))
        return faults

    # The most bytes first, so that the last thread ends early.
    groups = sorted(copies_of.values(), key=lambda group: -group[0].digest.size_bytes * len(group))
    found = each(make, groups, num_threads=_NUM_THREADS, size_bytes=_size_of(copies_of))
    return {target: error for faults in found for target, error in faults.items()}


def _place(
    cache_root: Path, staged: Mapping[_Target, Path], targets: Collection[_Target], index: DigestIndex
) -> tuple[dict[_Target, Path], dict[_Target, StoreError]]:
    """Give staged ``targets`` their names; return where they are, and why others are not placed."""
    placed: dict[_Target, Path] = {}
    faults: dict[_Target, StoreError] = {}
    ready: set[Path] = set()
    planned = _by_function_dir(staged)
    for name, mine in _by_function_dir(targets).items():
        function_dir, directory = cache_root / name, staged[mine[0]].parent
        try:
            with os_errors_are_unusable("directory", function_dir):
                for target in mine:
                    date_back(staged[target])
            if function_dir.parent not in ready:
                make_directories_below(cache_root, function_dir.parent)
                ready.add(function_dir.parent)
            if len(mine) == len(planned[name]) and place_directory(function_dir, directory):
                found = {target: function_dir / staged[target].name for target in mine}
            else:
                make_directories_below(cache_root, function_dir)
                place = functools.partial(place_file, function_dir, digest_of=index.digest)
                found = {target: place(staged[target], target.digest, beside=target.name) for target in mine}
        except (Corrupt, UnusableCache) as error:
            faults.update(dict.fromkeys(mine, error))
            continue
        for target, path in found.items():
            index.remember_own(path, target.digest)
        placed.update(found)
        reached(Step.FETCH_PLACED)
    return placed, faults
