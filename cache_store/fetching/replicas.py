"""Copies of a partition's files for other partitions of its cache directory, as an offline build makes.

Invariants: those of the cache directory: every copy is private, has its own inode, and appears with a whole
function directory or as one more variant; the originals are verified before anything is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.fetching.copying import clone
from warmrank.cache_store.node.companions import is_companion_name, place_companion
from warmrank.cache_store.node.local import add_variant_from, place_directory
from warmrank.cache_store.node.private_files import (
    digest_private,
    discard_tree,
    make_private_directories,
    os_errors_are_unusable,
    temporary_name,
)
from warmrank.cache_store.records.manifest import ArtifactEntry, PartitionManifest

_STAGING = ".tmp-"


def lay_out(manifests: Iterable[PartitionManifest], files: Mapping[str, Path], root: Path) -> int:
    """Make the files that partitions lack below the cache directory ``root``.

    Args:
        manifests: of the partitions.
        files: for each sha256 that they name, a private file with those bytes.
        root: the cache directory.

    Returns:
        The number of files that were made.

    Raises:
        Corrupt: a file does not hold the bytes that it should.
        UnusableCache: a file is not there or not private, or ``root`` cannot be written.
    """
    checked: set[str] = set()
    staging = root / f"{_STAGING}{temporary_name()}"
    made = 0
    try:
        for manifest in manifests:
            for function_dir, entries in _by_directory(manifest).items():
                for entry in entries:
                    if entry.sha256 not in checked:
                        _check(files[entry.sha256], entry.digest)
                        checked.add(entry.sha256)
                made += _lay_out(root / function_dir, entries, files, staging)
    finally:
        discard_tree(staging)
    return made


def _by_directory(manifest: PartitionManifest) -> dict[str, list[ArtifactEntry]]:
    found: dict[str, list[ArtifactEntry]] = {}
    for entry in manifest.artifacts:
        found.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    return found


def _check(path: Path, expected: Digest) -> None:
    with os_errors_are_unusable("file", path):
        actual = digest_private(path)
    if actual != expected:
        remedy = "it changed after it was made; build again"
        raise Corrupt(
            what="artifact", where=str(path), expected=str(expected), actual=str(actual), remedy=remedy
        )


def _lay_out(
    function_dir: Path, entries: list[ArtifactEntry], files: Mapping[str, Path], staging: Path
) -> int:
    if not function_dir.exists():
        staged = staging / temporary_name()
        with os_errors_are_unusable("directory", staged):
            make_private_directories(staged)
        for entry in entries:
            clone(files[entry.sha256], staged / entry.path.rpartition("/")[2], _count_nothing)
        if place_directory(function_dir, staged):
            return len(entries)
    return sum(_add(function_dir, entry, files[entry.sha256], staging) for entry in entries)


def _add(function_dir: Path, entry: ArtifactEntry, source: Path, staging: Path) -> int:
    name = entry.path.rpartition("/")[2]
    if (function_dir / name).exists() and digest_private(function_dir / name) == entry.digest:
        return 0
    if is_companion_name(name):
        with os_errors_are_unusable("directory", staging):
            make_private_directories(staging)
        copy = staging / temporary_name()
        clone(source, copy, _count_nothing)
        place_companion(function_dir, name, copy, entry.digest)
    else:
        add_variant_from(function_dir, source, entry.digest)
    return 1


def _count_nothing(num_bytes: int) -> None:
    """Nobody watches."""
    del num_bytes
