"""What a fetch has to lay out: pure values, made of manifests.

Invariants: a *target* is one variant to be, whatever number of partitions want it; targets of one function
keep the order in which their partitions were asked for, because a later variant is tried later.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import NotInStore, StoreError
from warmrank.cache_store.fetching.reports import FetchReport
from warmrank.cache_store.node.companions import is_companion_name
from warmrank.cache_store.records.manifest import CaptureEntry, PartitionManifest, PartitionRef


@dataclass(frozen=True, slots=True)
class Target:
    """Bytes that a function's directory shall hold.

    Attributes:
        function_dir: posix path relative to the cache directory.
        digest: the bytes.
        name: of a file beside the variants; empty for a variant, which gets the next number there.
    """

    function_dir: str
    digest: Digest
    name: str = ""

    def __hash__(self) -> int:
        # Asked for a dozen times for each of thousands of files, so not of all that the digest says.
        return hash((self.function_dir, self.digest.sha256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What one reference asks for.

    Attributes:
        ref: the reference.
        functions: the function of each target, in the order of the manifest.
        captures: the capture plan of the manifest.
    """

    ref: PartitionRef
    functions: Mapping[Target, str]
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

    Node artifacts are none of it: they come by themselves, once a node (`node_artifacts`).

    Args:
        ref: the partition's reference.
        manifest: the partition.
        known: the targets of other partitions, which are shared because there may be millions.
    """
    functions: dict[Target, str] = {}
    for entry in manifest.artifacts:
        if entry.scope == "node":
            continue
        function_dir, _, name = entry.path.rpartition("/")
        target = Target(function_dir, entry.digest, name if is_companion_name(name) else "")
        functions.setdefault(known.setdefault(target, target), sys.intern(entry.function))
    return Partition(ref=ref, functions=functions, captures=manifest.captures)


def by_digest(targets: Iterable[Target]) -> dict[Digest, list[Target]]:
    """Targets that are copies of one blob; the most bytes first, so that the last thread ends early."""
    found: dict[Digest, list[Target]] = {}
    for target in targets:
        found.setdefault(target.digest, []).append(target)
    return dict(sorted(found.items(), key=lambda item: -item[0].size_bytes * len(item[1])))


def by_function_dir(targets: Iterable[Target]) -> dict[str, list[Target]]:
    """Targets of one function's directory, in their order; files beside variants before what needs them."""
    found: dict[str, list[Target]] = {}
    for target in sorted(targets, key=lambda target: not target.name):
        found.setdefault(target.function_dir, []).append(target)
    return found
