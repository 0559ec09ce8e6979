"""What packages of static kernels were installed into a CANN out of one cache directory.

Layout: ``<directory>/<16 hex of the tree's path>.json``, mode 0600::

    {"cann":"9.0.0","format":1,"installed":{"<package>":"<sha256>",...}}

Invariants: another version in the same place is another installation of CANN, and its kernels are gone with
the old one; an unreadable record is empty, and packages are then installed again, which does no harm. It is
written by one process at a time, by the lock of `worker.static_kernels`, and replaced whole.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from cache_store.digests import digest_bytes
from cache_store.errors import UnusableCache
from cache_store.node.private_files import (
    create_private,
    os_errors_are_unusable,
    read_private,
    temporary_name,
)

_log = logging.getLogger(__name__)

STAGING = ".tmp-"
_FORMAT = 1
_MAX_RECORD_BYTES = 16 << 20


class InstalledKernels:
    """The record of one CANN.

    Args:
        directory: where records lie.
        tree: where packages are installed to.
        cann: the version that is there.
    """

    def __init__(self, directory: Path, tree: Path, cann: str) -> None:
        self.directory = directory
        self._path = directory / f"{digest_bytes(os.path.realpath(tree).encode()).sha256[:16]}.json"
        self._cann = cann
        self._installed = _read(self._path, cann)

    def has(self, package: str, sha256: str) -> bool:
        """Whether these bytes were installed under that name; they may have been uninstalled since."""
        return self._installed.get(package) == sha256

    def add(self, package: str, sha256: str) -> None:
        """Note that a package was installed.

        Raises:
            UnusableCache: the record cannot be written.
        """
        self._installed[package] = sha256
        document = {"format": _FORMAT, "cann": self._cann, "installed": self._installed}
        temporary = self._path.with_name(f"{STAGING}{temporary_name()}")
        with os_errors_are_unusable("file", self._path):
            with create_private(temporary) as file:
                file.write(json.dumps(document, sort_keys=True).encode())
            temporary.replace(self._path)


def _read(path: Path, cann: str) -> dict[str, str]:
    try:
        if not path.exists() or path.stat().st_size > _MAX_RECORD_BYTES:
            return {}
        document = json.loads(read_private(path))
        if document["format"] != _FORMAT or document["cann"] != cann:
            return {}
        return {str(name): str(sha256) for name, sha256 in document["installed"].items()}
    except (OSError, UnusableCache, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.info("Record of static kernels %s is not used: %s", path, error)
        return {}
