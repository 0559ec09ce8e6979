"""Whether a cache directory may hold artifacts that nobody signed.

Layout: ``<cache root>/.unverified`` says that artifacts came from a store without being required to carry a
signature. Invariants: a cache directory remembers no signatures, so the mark is durable before the first
such copy, it is never taken away, and trust policy ``require`` refuses a directory that bears it.

A rank's opening imports this module, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from warmrank.cache_store.errors import RefusedCache
from warmrank.cache_store.node.private_files import (
    create_private,
    os_errors_are_unusable,
    sync_directory,
)

UNVERIFIED = ".unverified"
_TEXT = """\
Artifacts were copied into this directory from a store whose trust policy was not 'require', so nobody may
have signed them. warmrank with policy 'require' refuses this directory; empty it, this file included, or use
another cache_dir.
"""


def is_unverified(cache_root: Path) -> bool:
    """Whether a directory bears the mark; raises `UnusableCache`."""
    with os_errors_are_unusable("file", cache_root / UNVERIFIED):
        try:
            (cache_root / UNVERIFIED).lstat()
        except FileNotFoundError:
            return False
    return True


def refuse_unverified(cache_root: Path, policy: str) -> None:
    """Refuse, under trust policy ``require``, a directory into which unverified artifacts were copied.

    Raises:
        RefusedCache: it bears the mark of `mark_unverified`.
        UnusableCache: it cannot be looked at.
    """
    if policy != "require" or not is_unverified(cache_root):
        return
    raise RefusedCache(
        what="directory",
        where=str(cache_root),
        expected="only artifacts that a trusted key signed, as trust policy 'require' asks",
        actual=f"{UNVERIFIED}: some were copied under another policy",
        remedy="use another cache_dir, or empty this one",
    )


def mark_unverified(cache_root: Path, policy: str) -> None:
    """Before the first copy under another policy than ``require``: leave word of it; once is enough.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    path = cache_root / UNVERIFIED
    if policy == "require":
        return
    with os_errors_are_unusable("file", path), contextlib.suppress(FileExistsError):
        with create_private(path) as file:
            file.write(_TEXT.encode())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(cache_root)
