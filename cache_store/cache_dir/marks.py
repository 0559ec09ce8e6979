"""Marks of those who vouch for the copies in a cache directory: checked first, noted durably before a copy.

Layout: ``<cache root>/.signers/<key id>``, an empty file for each key that vouched for a copy, and ``<cache
root>/.unverified``, where copies came without being required to carry a signature. A mark is never removed.
Every copy needs a `Permit`, so a later revocation or a stricter policy reaches it whatever brought it. A
rank's opening imports this: the standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.private_files import (
    OTHERS_WRITE,
    create_private,
    ensure_cache_dir,
    make_private_directories,
    os_errors_are_unusable,
    sync_directory,
)
from warmrank.cache_store.errors import RefusedCache

SIGNERS = ".signers"
UNVERIFIED = ".unverified"
_TEXT = """\
Artifacts were copied into this directory from a store whose trust policy was not 'require', so nobody may
have signed them. warmrank with policy 'require' refuses this directory; empty it, this file included, or use
another cache_dir.
"""


@dataclass(frozen=True, slots=True)
class Permit:
    """Copies may go below ``root``, which bears the marks of those who vouch for them."""

    root: Path

    def covers(self, path: Path) -> bool:
        """Return True for a path below ``root``; by its text, because it is asked for each of thousands."""
        return str(path).startswith(str(self.root).rstrip(os.sep) + os.sep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The laxest trust policy under which copies came, and ids of the keys that vouched for any."""

    policy: str
    signers: Collection[str] = frozenset()


def marks_of(cache_root: Path) -> Marks:
    """The marks of a directory."""
    return Marks(policy="off" if _is_unverified(cache_root) else "require", signers=_signers_of(cache_root))


def mark_signers(cache_root: Path, key_ids: Iterable[str]) -> None:
    """Note the keys that vouch for copies, before the first copy."""
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


def mark_unverified(cache_root: Path, policy: str) -> None:
    """Note, before the first copy, that copies come under another policy than ``require``."""
    path = cache_root / UNVERIFIED
    if policy == "require":
        return
    with os_errors_are_unusable("file", path), contextlib.suppress(FileExistsError):
        with create_private(path) as file:
            file.write(_TEXT.encode())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(cache_root)


def permit_copies(cache_root: Path, policy: str, signers: Collection[str]) -> Permit:
    """Mark a directory, or one that is to be renamed into it, durably before the first copy.

    ``signers`` are ids of the keys that may have vouched for the copies.
    """
    mark_unverified(cache_root, policy)
    mark_signers(cache_root, signers)
    return Permit(cache_root)


def admit(cache_root: Path, policy: str, revoked: Collection[str], *, below: bool = True) -> None:
    """Make sure that a cache directory may be used; it is created if absent; raises as `check_marks`."""
    ensure_cache_dir(cache_root)
    check_marks(cache_root, policy, revoked, below=below)


def check_marks(cache_root: Path, policy: str, revoked: Collection[str], *, below: bool = True) -> None:
    """Refuse a directory for the copies in it; it bears their marks, or one below, or one that it lies in.

    The directory may be absent. ``below`` asks for the walk through it; once is enough.

    Raises:
        RefusedCache: it holds what nobody signed, under policy ``require``; or what a key vouched for that
            is revoked, unless the policy is ``off``.
    """
    if policy == "off":
        return
    for directory in (cache_root, *_own_above(cache_root), *(_marked_below(cache_root) if below else ())):
        bad_signers = sorted(_signers_of(directory).intersection(revoked)) if revoked else []
        if policy == "require" and _is_unverified(directory):
            expected = "only artifacts that a trusted key signed, as trust policy 'require' asks"
            actual = f"{UNVERIFIED}: some were copied under another policy"
            remedy = "use another cache_dir, or empty this one"
        elif bad_signers:
            expected = "only artifacts of keys that are not revoked"
            actual = f"artifacts that key {bad_signers[0]} signed, which is revoked"
            remedy = (
                "empty this directory, or use another cache_dir; what was compiled here is compiled again"
            )
        else:
            continue
        raise RefusedCache(
            what="directory", where=str(directory), expected=expected, actual=actual, remedy=remedy
        )


def _signers_of(cache_root: Path) -> frozenset[str]:
    with os_errors_are_unusable("directory", cache_root / SIGNERS):
        try:
            return frozenset(os.listdir(cache_root / SIGNERS))  # noqa: PTH208 - only names are needed
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()


def _is_unverified(cache_root: Path) -> bool:
    with os_errors_are_unusable("file", cache_root / UNVERIFIED):
        try:
            (cache_root / UNVERIFIED).lstat()
        except FileNotFoundError:
            return False
    return True


def _own_above(cache_root: Path) -> Iterator[Path]:
    """The directories above in which only this user can have left marks."""
    for directory in cache_root.resolve().parents:
        status = directory.stat() if directory.exists() else None
        if status and status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE:
            yield directory


def _marked_below(cache_root: Path) -> Iterator[Path]:
    """The directories below that bear marks, without staging, out of which nothing is used."""
    for directory, names, files in os.walk(cache_root):
        if SIGNERS in names or UNVERIFIED in files:
            yield Path(directory)
        names[:] = [name for name in names if not name.startswith(".tmp")]
