"""Whose signatures vouched for what lies in a cache directory, so that a revocation reaches the copies.

Layout: ``<cache root>/.signers/<key id>``, an empty file for each key. Invariants: the mark is durable before
the first copy that the key vouched for, and is never taken away; a directory that bears the mark of a revoked
key is refused as a whole, because it is not known which of its files came that way.

A rank's opening imports this module, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from warmrank.cache_store.errors import RefusedCache
from warmrank.cache_store.node.private_files import (
    create_private,
    make_private_directories,
    os_errors_are_unusable,
    sync_directory,
)

SIGNERS = ".signers"


def mark_signers(cache_root: Path, key_ids: Iterable[str]) -> None:
    """Before the first copy that these keys vouch for: leave word of them; once is enough.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    directory = cache_root / SIGNERS
    new = [key_id for key_id in sorted(set(key_ids)) if not (directory / key_id).exists()]
    if not new:
        return
    with os_errors_are_unusable("directory", directory):
        make_private_directories(directory)
        for key_id in new:
            with contextlib.suppress(FileExistsError):
                create_private(directory / key_id).close()
        sync_directory(directory)
        sync_directory(cache_root)


def signers_of(cache_root: Path) -> frozenset[str]:
    """Ids of the keys that vouched for what lies in a directory; raises `UnusableCache`."""
    with os_errors_are_unusable("directory", cache_root / SIGNERS):
        try:
            return frozenset(os.listdir(cache_root / SIGNERS))  # noqa: PTH208 - only names are needed
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()


def refuse_revoked(cache_root: Path, policy: str, revoked: Collection[str]) -> None:
    """Refuse a directory into which artifacts were copied that a key vouched for which is revoked by now.

    Not under trust policy ``off``, which looks at no key.

    Raises:
        RefusedCache: it bears the mark of one of these key ids.
        UnusableCache: it cannot be looked at.
    """
    if policy == "off" or not revoked:
        return
    if found := sorted(signers_of(cache_root).intersection(revoked)):
        raise RefusedCache(
            what="directory",
            where=str(cache_root),
            expected="only artifacts of keys that are not revoked",
            actual=f"artifacts that key {found[0]} signed, which is revoked",
            remedy="empty this directory, or use another cache_dir; what was compiled here is compiled again",
        )
