"""What a fetch lays out, and how: copied into a staging directory, then given its names; and what came of it.

Layout: ``<cache root>/.tmp-<unique>/<n>/compiled_module[.N]``, files beside variants under their own names,
where ``n`` counts the functions, so that a function new to the cache directory gets all of its variants by
one rename.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.local import (
    add_companion,
    add_variant,
    is_companion_name,
    place_directory,
    place_file,
)
from warmrank.cache_store.cache_dir.marks import Permit
from warmrank.cache_store.cache_dir.names import variant_name
from warmrank.cache_store.cache_dir.private_files import (
    date_back,
    digest_private,
    discard_tree,
    make_directories_below,
    make_private_directories,
    os_errors_are_unusable,
    temporary_name,
)
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, UnusableCache, outcome_of
from warmrank.cache_store.fetch.blobs import Blobs, clone
from warmrank.cache_store.parallel import each
from warmrank.cache_store.progress import Meter, nothing
from warmrank.cache_store.records.manifest import ArtifactEntry, CaptureEntry, PartitionManifest, PartitionRef
from warmrank.cache_store.steps import Step, reached


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """What became of one partition that was laid out."""

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

    partitions: tuple[FetchReport, ...]  # those laid out
    faults: tuple[FetchFault, ...]  # the others
    bytes_read: int  # out of the store: of each blob once, whatever the number of its copies
    copies: tuple[NewFile, ...]  # a verified private copy of each blob that was laid out, read or not
    seconds: float
    bytes_brought: int = 0  # from another node


@dataclass(frozen=True, slots=True)
class Target:
    """Bytes that a function's directory shall hold."""

    function_dir: str  # posix path relative to the cache directory
    digest: Digest
    name: str = ""  # of a file beside the variants; a variant gets the next number there

    def __hash__(self) -> int:
        # Asked for a dozen times for each of thousands of files, so not of all that the digest says.
        return hash((self.function_dir, self.digest.sha256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What one reference asks for."""

    ref: PartitionRef
    functions: Mapping[Target, str]  # of each target, in the order of the manifest
    captures: tuple[CaptureEntry, ...] = ()

    def fault(self, faults: Mapping[Target, StoreError]) -> StoreError | None:
        """Why this partition cannot be laid out; names all blobs that are missing."""
        errors = {target: faults[target] for target in self.functions if target in faults}
        for error in errors.values():
            if not isinstance(error, NotInStore):
                return error
        if not errors:
            return None
        missing = (f"{target.digest.sha256[:12]} of {self.functions[target]}" for target in errors)
        return NotInStore(what=f"blobs {', '.join(missing)}", where=self.ref.partition)

    def report(self, copied: Collection[Target]) -> FetchReport:
        """The report on this partition, of whose targets ``copied`` were not there before."""
        mine = [target for target in self.functions if target in copied]
        return FetchReport(
            partition=self.ref.partition,
            num_files=len(self.functions),
            bytes_copied=sum(target.digest.size_bytes for target in mine),
            num_already_there=len(self.functions) - len(mine),
            captures=self.captures,
        )


def partition_of(ref: PartitionRef, manifest: PartitionManifest, known: dict[Target, Target]) -> Partition:
    """What ``manifest`` asks for; equal bytes are one target, though it names them twice.

    Node artifacts are none of it: they come by themselves, once a node (`node_artifacts`). The ``known``
    targets of other partitions are shared, because there may be millions.
    """
    functions: dict[Target, str] = {}
    for entry in manifest.artifacts:
        if entry.scope == "node":
            continue
        function_dir, _, name = entry.path.rpartition("/")
        target = Target(function_dir, entry.digest, name if is_companion_name(name) else "")
        functions.setdefault(known.setdefault(target, target), sys.intern(entry.function))
    return Partition(ref=ref, functions=functions, captures=manifest.captures)


def by_function_dir(targets: Iterable[Target]) -> dict[str, list[Target]]:
    """Targets of one function's directory, in their order; files beside variants before what needs them."""
    found: dict[str, list[Target]] = {}
    for target in sorted(targets, key=lambda target: not target.name):
        found.setdefault(target.function_dir, []).append(target)
    return found


NUM_THREADS = 8
STAGING = ".tmp-"


class Staging:
    """Where ``targets`` are made before they get their names; `staging` makes one."""

    def __init__(self, permit: Permit, directory: Path, targets: Collection[Target]) -> None:
        self._cache_root = permit.root
        self._directories: dict[str, Path] = {}
        self._num_planned: dict[str, int] = {}
        self._paths: dict[Target, Path] = {}
        for number, (function_dir, mine) in enumerate(by_function_dir(targets).items()):
            self._directories[function_dir] = directory / str(number)
            self._num_planned[function_dir] = len(mine)
            numbers = itertools.count()
            for target in mine:
                name = target.name or variant_name(next(numbers))
                self._paths[target] = self._directories[function_dir] / name

    def fill(self, blobs: Blobs, meter: Meter) -> dict[Target, StoreError]:
        """Copy everything out of the store, verified, and return why targets could not be made."""
        for directory in self._directories.values():
            with os_errors_are_unusable("directory", directory):
                make_private_directories(directory)

        faults: dict[Target, StoreError] = {}
        copies_of: dict[Digest, list[Target]] = {}
        for target in self._paths:
            copies_of.setdefault(target.digest, []).append(target)
        # The most bytes first, so that the last thread ends early.
        groups = sorted(copies_of.values(), key=lambda group: -group[0].digest.size_bytes * len(group))
        size_bytes = sum(digest.size_bytes for digest in copies_of)

        def copy(copies: list[Target]) -> dict[Target, StoreError]:
            return self._copy(blobs, copies, meter)

        for found in each(copy, groups, num_threads=NUM_THREADS, size_bytes=size_bytes):
            faults.update(found)
        return faults

    def _copy(self, blobs: Blobs, targets: list[Target], meter: Meter) -> dict[Target, StoreError]:
        first, *others = targets
        origin = self._paths[first]
        copied = outcome_of(lambda: blobs.copy(first.digest, origin, meter.count))
        if isinstance(copied, StoreError):
            return dict.fromkeys(targets, copied)
        meter.count(0, num_files=1)
        faults: dict[Target, StoreError] = {}
        for target in others:
            try:
                clone(origin, self._paths[target], meter.count)
            except UnusableCache as error:
                faults[target] = error
            else:
                meter.count(0, num_files=1)
        return faults

    def place(
        self, targets: Collection[Target], index: DigestIndex
    ) -> tuple[dict[Target, Path], dict[Target, StoreError]]:
        """Give staged ``targets`` their names; return where they are, and why others are not placed."""
        placed: dict[Target, Path] = {}
        faults: dict[Target, StoreError] = {}
        ready: set[Path] = set()
        for function_dir, mine in by_function_dir(targets).items():
            target_dir = self._cache_root / function_dir
            parent = target_dir.parent
            try:
                with os_errors_are_unusable("directory", target_dir):
                    for target in mine:
                        date_back(self._paths[target])
                if parent not in ready:
                    make_directories_below(self._cache_root, parent)
                    ready.add(parent)
                found = self._place(target_dir, mine, index)
            except (Corrupt, UnusableCache) as error:
                faults.update(dict.fromkeys(mine, error))
                continue
            for target, path in found.items():
                index.remember_own(path, target.digest)
            placed.update(found)
            reached(Step.FETCH_PLACED)
        return placed, faults

    def _place(self, function_dir: Path, targets: list[Target], index: DigestIndex) -> dict[Target, Path]:
        planned = targets[0].function_dir
        is_whole = len(targets) == self._num_planned[planned]
        if is_whole and place_directory(function_dir, self._directories[planned]):
            return {target: function_dir / self._paths[target].name for target in targets}
        make_directories_below(self._cache_root, function_dir)
        place = functools.partial(place_file, function_dir, digest_of=index.digest)
        return {target: place(self._paths[target], target.digest, beside=target.name) for target in targets}


@contextlib.contextmanager
def staging(permit: Permit, targets: Collection[Target]) -> Iterator[Staging]:
    """A staging directory, gone afterwards."""
    path = permit.root / f"{STAGING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        make_private_directories(path)
    try:
        yield Staging(permit, path, targets)
    finally:
        discard_tree(path)


def replicate(manifests: Iterable[PartitionManifest], files: Mapping[str, Path], root: Path) -> int:
    """Make the files that partitions lack below the cache directory ``root``, and return their number.

    ``files`` has a private file for each sha256 that the manifests name.
    """
    checked: set[str] = set()
    staging = root / f"{STAGING}{temporary_name()}"
    made = 0
    try:
        for manifest in manifests:
            by_directory: dict[str, list[ArtifactEntry]] = {}
            for entry in manifest.artifacts:
                by_directory.setdefault(entry.path.rpartition("/")[0], []).append(entry)
            for function_dir, entries in by_directory.items():
                for entry in entries:
                    if entry.sha256 in checked:
                        continue
                    path = files[entry.sha256]
                    with os_errors_are_unusable("file", path):
                        actual = digest_private(path)
                    if actual != entry.digest:
                        raise Corrupt(
                            what="artifact",
                            where=str(path),
                            expected=str(entry.digest),
                            actual=str(actual),
                            remedy="it changed after it was made; build again",
                        )
                    checked.add(entry.sha256)
                made += _materialize(root / function_dir, entries, files, staging)
    finally:
        discard_tree(staging)
    return made


def _materialize(
    function_dir: Path, entries: list[ArtifactEntry], files: Mapping[str, Path], staging: Path
) -> int:
    if not function_dir.exists():
        staged = staging / temporary_name()
        with os_errors_are_unusable("directory", staged):
            make_private_directories(staged)
        for entry in entries:
            clone(files[entry.sha256], staged / entry.path.rpartition("/")[2], nothing)
        if place_directory(function_dir, staged):
            return len(entries)
    return sum(_add(function_dir, entry, files[entry.sha256]) for entry in entries)


def _add(function_dir: Path, entry: ArtifactEntry, source: Path) -> int:
    name = entry.path.rpartition("/")[2]
    if (function_dir / name).exists() and digest_private(function_dir / name) == entry.digest:
        return 0
    if is_companion_name(name):
        add_companion(function_dir, name, source, entry.digest)
    else:
        add_variant(function_dir, source, entry.digest)
    return 1
