"""The files beside an artifact, such as compiled kernels: saved before it, adopted and fetched with it.

Invariants: a file is written before the artifact that names it; a look-up verifies it before the artifact
counts as found, so a missing or damaged one is a miss with its reason, and never an error of a call; a
damaged one is moved aside, not deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.local import (
    add_companion,
    add_companion_from,
    companions,
)
from warmrank.cache_store.cache_dir.private_files import set_aside
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError
from warmrank.worker.artifact import damaged_files
from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.worker.variant import StoredArtifact

_log = logging.getLogger("torchair")


def save(function_dir: Path, files: Mapping[str, bytes]) -> dict[str, Path]:
    """Write a new artifact's files; where they lie, by name."""
    return {name: add_companion(function_dir, name, data) for name, data in files.items()}


def with_files(stored: StoredArtifact, reasons: list[str]) -> StoredArtifact | None:
    """The artifact with its files verified; None, and why in ``reasons``, if one cannot be used."""
    if not stored.artifact.files:
        return stored
    try:
        return replace(stored, beside=stored.files())
    except ArtifactMissing as error:
        reasons.append(f"missing: {Path(error.where).name}")
    except ArtifactCorrupt as error:
        reasons.append(f"corrupt: {Path(error.where).name}: {error.why}")
        for path in damaged_files(stored.path.parent, stored.artifact.files):
            set_aside(path)
    except StoreError as error:
        reasons.append(str(error))
    _log.warning("%s is not used: file beside it: %s", stored.path, reasons[-1])
    return None


def adopted(function_dir: Path, stored: StoredArtifact) -> dict[str, Path]:
    """Copies of an artifact's files in another function directory, verified; where they lie, by name.

    Raises:
        Corrupt: one changed since it was looked at.
        UnusableCache: the directory cannot be written.
    """
    return {
        file.name: add_companion_from(
            function_dir,
            stored.path.parent / file.name,
            Digest(sha256=file.sha256, size_bytes=file.size_bytes),
        )
        for file in stored.artifact.files
    }


def fetched(store: Store, stored: StoredArtifact, cache_root: Path) -> StoredArtifact | None:
    """The artifact, its files fetched out of the store beside it; None if they cannot be used.

    Raises:
        StoreError: the store does not have one of them, or cannot be read.
    """
    for file in stored.artifact.files:
        store.fetch_blob(file.sha256, stored.path.parent, cache_root=cache_root, beside=file.name)
    return with_files(stored, [])


def remove(function_dir: Path) -> None:
    """Remove the files of all artifacts in a function's directory."""
    for path in companions(function_dir):
        path.unlink(missing_ok=True)
