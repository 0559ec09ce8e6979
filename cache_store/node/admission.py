"""May copies go into a cache directory, and be used out of it: asked first, and noted before a copy.

Invariants: every copy out of a store needs a `Permit`, which only `permit_copies` gives, after the directory
bears the marks of those by whose word the copy comes; so a later revocation, or a stricter policy, reaches it
whatever brought it.

A rank's opening imports this module, so it needs the standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.node.private_files import ensure_cache_dir
from warmrank.cache_store.node.signers import mark_signers, refuse_revoked, signers_of
from warmrank.cache_store.node.unverified import is_unverified, mark_unverified, refuse_unverified


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


def admit(cache_root: Path, policy: str, revoked: Collection[str]) -> None:
    """Make sure that a cache directory may be used under a trust policy; it is created if absent.

    Args:
        cache_root: the cache directory.
        policy: the trust policy.
        revoked: ids of the keys that are revoked.

    Raises:
        UnusableCache: it cannot be used by this user; or as `check_marks`.
    """
    ensure_cache_dir(cache_root)
    check_marks(cache_root, policy, revoked)


def check_marks(cache_root: Path, policy: str, revoked: Collection[str]) -> None:
    """Refuse a directory for the copies in it.

    Raises:
        UnusableCache: it holds what nobody signed, under policy ``require``; or what a key vouched for that
            is revoked, unless the policy is ``off``.
    """
    refuse_unverified(cache_root, policy)
    refuse_revoked(cache_root, policy, revoked)


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
