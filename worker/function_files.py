"""The files of one cached function: saves new artifacts, takes over those of others, gives them up.

Once they are given up, nothing is written any more: what is compiled from then on lives in this process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.local import add_variant, add_variant_from, variants
from warmrank.cache_store.digests import digest_bytes
from warmrank.worker import files_beside
from warmrank.worker.variant import StoredArtifact
from warmrank.worker.withheld import withhold

if TYPE_CHECKING:
    from warmrank.worker.artifact import Artifact

_log = logging.getLogger("torchair")
_META_VERSION = "1.0.0"


class FunctionFiles:
    """Writes the files of the function of this name, until they are abandoned."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.abandoned = False

    def save(
        self, function_dir: Path, artifact: Artifact, files: Mapping[str, bytes], *, withheld: bool = False
    ) -> StoredArtifact:
        """Save a new artifact, and the files beside it, by name; see `worker.withheld`."""
        data = artifact.to_bytes()
        digest = digest_bytes(data)
        path = function_dir
        # Without a file the engine goes on with what it just compiled.
        if withheld and not self.abandoned:
            withhold(path, digest.sha256)
        beside: dict[str, Path] = {} if self.abandoned else files_beside.save(path, files)
        if not self.abandoned:
            path = add_variant(path, data)
        stored = StoredArtifact(
            artifact=artifact, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes, beside=beside
        )
        if not self.abandoned:
            announce("saved to", stored)
        return stored

    def abandon(self, function_dir: Path, reason: str) -> None:
        """TorchAir's rule: a second trace gives up the function's cache."""
        if not self.abandoned:
            _log.warning("Skip cache as %s recompiled (its cache is removed): %s", self._name, reason)
        self.abandoned = True
        for path in variants(function_dir):
            path.unlink(missing_ok=True)
        files_beside.remove(function_dir)


def adopted(function_dir: Path, stored: StoredArtifact, *, withheld: bool = False) -> StoredArtifact:
    """An artifact of another partition, copied into this one; see `worker.withheld`."""
    if withheld:
        withhold(function_dir, stored.sha256)
    beside = files_beside.adopted(function_dir, stored)
    path = add_variant_from(function_dir, stored.path)
    return replace(stored, path=path, beside=beside)


def announce(what: str, stored: StoredArtifact) -> None:
    """Log what was done with an artifact in TorchAir's words."""
    if _log.isEnabledFor(logging.INFO):
        name = stored.artifact.name
        meta = f"ModelCacheMeta({name=}, date={_made(stored.path)!r}, version={_META_VERSION!r}, fx=None)"
        _log.info("Cache %s %s %s", meta, what, stored.path)


def _made(path: Path) -> str:
    """When a file was made, in local time, as TorchAir prints it; nothing for one that is gone by now."""
    try:
        moment = datetime.fromtimestamp(path.stat().st_mtime)  # noqa: DTZ006 - TorchAir's is local time
    except FileNotFoundError:
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
