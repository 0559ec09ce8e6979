"""Whether copies may go into a cache directory, and be used out of it: one question, asked before all else.

A rank's opening imports this module, so it needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cache_store.node.private_files import ensure_cache_dir
from cache_store.node.signers import refuse_revoked
from cache_store.node.unverified import refuse_unverified


def admit(cache_root: Path, policy: str, revoked: Collection[str]) -> None:
    """Make sure that a cache directory may be used under a trust policy; it is created if absent.

    Args:
        cache_root: the cache directory.
        policy: the trust policy.
        revoked: ids of the keys that are revoked.

    Raises:
        UnusableCache: it cannot be used by this user; it holds what nobody signed, under policy ``require``;
            or what a key vouched for that is revoked, unless the policy is ``off``.
    """
    ensure_cache_dir(cache_root)
    refuse_unverified(cache_root, policy)
    refuse_revoked(cache_root, policy, revoked)
