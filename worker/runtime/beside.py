"""The files beside an artifact, verified.

Beside an artifact lie files that belong to it, such as compiled kernels. A file is written before the
artifact that names it; a look-up verifies it before the artifact counts as found, so a missing or damaged one
is a miss with its reason, and never an error of a call; a damaged one is moved aside, not deleted.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing
from warmrank.worker.runtime.artifact import ArtifactFile, corrupt, open_private
from warmrank.worker.values import replace

if TYPE_CHECKING:
    from warmrank.worker.runtime.find import StoredArtifact

_log = logging.getLogger("torchair")


def verified(directory: Path, file: ArtifactFile) -> Path:
    """Path of a file beside an artifact, its bytes verified.

    Raises:
        ArtifactMissing: it is not there.
        ArtifactCorrupt: it holds other bytes.
        UnusableCache: it is not private, or cannot be read.
    """
    path = directory / file.name
    if not path.exists():
        msg = f"{path} is missing, though the artifact beside it needs it; that is fetched or compiled again."
        raise ArtifactMissing(msg, where=str(path), why="it is missing")
    with open_private(path) as opened:
        sha256, size_bytes = hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
    if (sha256, size_bytes) != (file.sha256, file.size_bytes):
        raise corrupt(str(path), "its bytes do not match the digest in the artifact beside it")
    return path


def with_files(stored: StoredArtifact, reasons: list[str]) -> StoredArtifact | None:
    """The artifact with its files verified; None, and why in ``reasons``, if one cannot be used."""
    try:
        return replace(stored, beside=stored.files())
    except ArtifactMissing as error:
        reasons.append(f"missing: {Path(error.where).name}")
    except ArtifactCorrupt as error:
        reasons.append(f"corrupt: {Path(error.where).name}: {error.why}")
        _set_damaged_aside(stored)
    except Exception as error:
        from warmrank.cache_store.errors import StoreError

        if not isinstance(error, StoreError):
            raise
        reasons.append(str(error))
    _log.warning("%s is not used: file beside it: %s", stored.path, reasons[-1])
    return None


def _set_damaged_aside(stored: StoredArtifact) -> None:
    """Move files of this user's own, with other bytes than they should hold, out of the way."""
    from warmrank.cache_store.cache_dir.private_files import set_aside
    from warmrank.cache_store.errors import UnusableCache

    for file in stored.artifact.files:
        try:
            verified(stored.path.parent, file)
        except (ArtifactMissing, UnusableCache):
            continue
        except ArtifactCorrupt:
            set_aside(stored.path.parent / file.name)
