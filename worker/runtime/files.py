"""The files of one cached function: saves new artifacts, takes over those of others, gives them up.

Beside an artifact lie files that belong to it, such as compiled kernels. A file is written before the
artifact that names it; a look-up verifies it before the artifact counts as found, so a missing or damaged one
is a miss with its reason, and never an error of a call; a damaged one is moved aside, not deleted.

A mark beside an artifact, ``.withheld_<sha256>``, keeps other partitions from it: its audit is not
through, or found a fault. It stands before the artifact does; the launch takes it away when nothing was
found. What bears a mark is not published.

A process that finds an artifact of its own without such files imports nothing of this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.local import (
    add_variant,
    companions,
    variants,
)
from warmrank.cache_store.cache_dir.private_files import make_private_directories, os_errors_are_unusable
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.worker.runtime.artifact import withheld_mark
from warmrank.worker.runtime.find import StoredArtifact, announce, candidates, read_stored, with_files

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.worker.runtime.artifact import Artifact
    from warmrank.worker.runtime.find import Place


OFFERED = "offered"  # the partition of what a store or another node offers


def save(
    function_dir: Path,
    artifact: Artifact,
    files: Mapping[str, bytes],
    *,
    withheld: bool = False,
    kept: bool = True,
) -> StoredArtifact:
    """Save a new artifact, and the files beside it, by name.

    ``withheld``: no other partition takes it by itself. Not ``kept``, nothing is written: the engine goes on
    with what it just compiled.
    """
    data = artifact.to_bytes()
    digest = digest_bytes(data)
    path, beside = function_dir, dict[str, Path]()
    if kept:
        if withheld:
            withhold(function_dir, digest.sha256)
        beside = {name: add_variant(function_dir, data, beside=name) for name, data in files.items()}
        path = add_variant(function_dir, data)
    stored = StoredArtifact(
        artifact=artifact, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes, beside=beside
    )
    if kept:
        announce("saved to", stored)
    return stored


def remove(function_dir: Path) -> None:
    """Remove all artifacts of a function, the files beside them, and its directory if empty then."""
    for path in (*variants(function_dir), *companions(function_dir)):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        function_dir.rmdir()


def adopted(function_dir: Path, stored: StoredArtifact, *, withheld: bool = False) -> StoredArtifact:
    """An artifact of another partition, copied into this one; see `worker.runtime.files`."""
    if withheld:
        withhold(function_dir, stored.sha256)
    beside = {
        file.name: add_variant(
            function_dir,
            stored.path.parent / file.name,
            Digest(sha256=file.sha256, size_bytes=file.size_bytes),
            beside=file.name,
        )
        for file in stored.artifact.files
    }
    path = add_variant(function_dir, stored.path)
    return replace(stored, path=path, beside=beside)


def by_digest(place: Place, sha256: str) -> StoredArtifact | None:
    """The artifact with this digest in any partition, or None."""
    for path in candidates(place):
        stored = read_stored(path, [])
        if stored is not None and stored.sha256 == sha256 and (whole := with_files(stored, [])) is not None:
            return whole
    return None


def offered(place: Place, sha256: str, store: Store | None, *, cache_root: Path) -> StoredArtifact | None:
    """The artifact with this digest: from the cache directory, else from the store; None if nowhere."""
    stored = by_digest(place, sha256)
    if stored is not None or store is None:
        return stored
    # Not into the own partition yet: its guards have not been asked.
    path = store.fetch_blob(
        sha256, place.model_dir / OFFERED / place.function_dir.name, cache_root=cache_root
    )
    stored = read_stored(path, [])
    return None if stored is None else fetched(store, stored, cache_root)


def fetched(store: Store, stored: StoredArtifact, cache_root: Path) -> StoredArtifact | None:
    """The artifact, its files fetched out of the store beside it; None if they cannot be used.

    Raises:
        StoreError: the store does not have one of them, or cannot be read.
    """
    for file in stored.artifact.files:
        store.fetch_blob(file.sha256, stored.path.parent, cache_root=cache_root, beside=file.name)
    return with_files(stored, [])


def withhold(function_dir: Path, sha256: str) -> None:
    """Keep other partitions from an artifact that is there, or about to be."""
    mark = withheld_mark(function_dir, sha256)
    make_private_directories(function_dir)
    with os_errors_are_unusable("file", mark):
        mark.touch(mode=0o600)


def release(function_dir: Path, sha256: str) -> None:
    """Let other partitions have an artifact."""
    mark = withheld_mark(function_dir, sha256)
    with os_errors_are_unusable("file", mark):
        mark.unlink(missing_ok=True)
