"""May copies go into a cache directory, and be used out of it: asked first, and noted before a copy.

Invariants: every copy out of a store needs a `Permit`, which only `permit_copies` gives, after the directory
bears the marks of those by whose word the copy comes; so a later revocation, or a stricter policy, reaches it
whatever brought it.

A rank's opening imports this module, so it needs the standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.node.private_files import ensure_cache_dir
from warmrank.cache_store.node.signers import SIGNERS, mark_signers, refuse_revoked, signers_of
from warmrank.cache_store.node.unverified import UNVERIFIED, is_unverified, mark_unverified, refuse_unverified


@dataclass(frozen=True, slots=True)
class Permit:
    """Copies may go below ``root``, which bears the marks of those who vouch for them."""

    root: Path

    def covers(self, path: Path) -> bool:
        """Whether a path lies below ``root``; by its text, because it is asked for each of thousands."""
        return str(path).startswith(str(self.root).rstrip(os.sep) + os.sep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a directory remembers of its copies, for another that takes some over.

    Attributes:
        policy: the laxest trust policy under which any came.
        signers: ids of the keys that vouched for any.
    """

    policy: str
    signers: frozenset[str]


def marks_of(cache_root: Path) -> Marks:
    """The marks of a directory; raises `UnusableCache`."""
    policy = "off" if is_unverified(cache_root) else "require"
    return Marks(policy=policy, signers=signers_of(cache_root))


def admit(cache_root: Path, policy: str, revoked: Collection[str], *, below: bool = True) -> None:
    """Make sure that a cache directory may be used under a trust policy; it is created if absent.

    Args:
        cache_root: the cache directory.
        policy: the trust policy.
        revoked: ids of the keys that are revoked.
        below: as of `check_marks`.

    Raises:
        UnusableCache: it cannot be used by this user; or as `check_marks`.
    """
    ensure_cache_dir(cache_root)
    check_marks(cache_root, policy, revoked, below=below)


def check_marks(cache_root: Path, policy: str, revoked: Collection[str], *, below: bool = True) -> None:
    """Refuse a directory for the copies in it; it bears their marks, or one below, or one that it lies in.

    Args:
        cache_root: the directory; it may be yet to be made.
        policy: the trust policy.
        revoked: ids of the keys that are revoked.
        below: look at the directories below it too, which takes a walk; where one follows another, once does.

    Raises:
        RefusedCache: it holds what nobody signed, under policy ``require``; or what a key vouched for that
            is revoked, unless the policy is ``off``.
        UnusableCache: a mark cannot be read.
    """
    if policy == "off":
        return
    for directory in (cache_root, *_own_above(cache_root), *(_marked_below(cache_root) if below else ())):
        refuse_unverified(directory, policy)
        refuse_revoked(directory, policy, revoked)


def _own_above(cache_root: Path) -> Iterator[Path]:
    """The directories above in which only this user can have left marks."""
    for directory in cache_root.resolve().parents:
        status = directory.stat() if directory.exists() else None
        if status and status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield directory


def _marked_below(cache_root: Path) -> Iterator[Path]:
    """The directories below that bear marks, without staging, out of which nothing is used."""
    for directory, names, files in os.walk(cache_root):
        if SIGNERS in names or UNVERIFIED in files:
            yield Path(directory)
        names[:] = [name for name in names if not name.startswith(".tmp")]


def permit_copies(cache_root: Path, policy: str, signers: Collection[str]) -> Permit:
    """Before the first copy: leave durable word of whom to ask about it.

    Args:
        cache_root: the cache directory, or one that is to be renamed into one.
        policy: the trust policy.
        signers: ids of the keys that may have vouched for the copies.

    Raises:
        UnusableCache: the directory cannot be written.
    """
    mark_unverified(cache_root, policy)
    mark_signers(cache_root, signers)
    return Permit(cache_root)
