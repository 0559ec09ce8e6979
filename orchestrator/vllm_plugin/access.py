"""The plugin's settings, and its access to the store: whom it trusts, and how long it may take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.signing.trust import TrustPolicy
from warmrank.orchestrator.config.store import StoreConfig, TrustConfig, locate_trust, tier_at
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.stores import decided, is_writable, may_publish

TIMEOUT_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The store of this process."""

    config: StoreConfig  # its place, and whom to trust; the policy is decided
    timeout_s: float  # the longest that vLLM waits for it

    @property
    def publishes(self) -> bool:
        """The store may be written, and what is published could be believed."""
        return is_writable(self.config.tiers) and may_publish(self.config.trust)


def access(environ: Mapping[str, str] = os.environ) -> Access:
    """The access that this process's environment asks for.

    ``WARMRANK_STORE`` is the place, ``WARMRANK_SIGNING_KEY`` a key's name in the keyring or a PEM file,
    ``WARMRANK_KEYRING`` the keyring, ``WARMRANK_TRUST`` the policy, ``WARMRANK_TIMEOUT_S`` the time-out.

    Raises:
        BadArgument: a variable cannot be used.
        StoreError: the keyring is damaged.
    """
    policy, timeout = environ.get("WARMRANK_TRUST"), environ.get("WARMRANK_TIMEOUT_S")
    if policy not in {None, *get_args(TrustPolicy)}:
        allowed = ", ".join(get_args(TrustPolicy))
        raise BadArgument(f"WARMRANK_TRUST: expected one of {allowed}; found {policy!r}")
    try:
        timeout_s = float(timeout) if timeout else TIMEOUT_S
    except ValueError:
        raise BadArgument(f"WARMRANK_TIMEOUT_S: expected seconds, found {timeout!r}") from None
    named = {"signing_key": "WARMRANK_SIGNING_KEY", "keyring": "WARMRANK_KEYRING"}
    paths = {key: Path(environ[name]) for key, name in named.items() if environ.get(name)}
    trust = TrustConfig.model_validate({"policy": policy, **paths})
    config = StoreConfig(
        tiers=(tier_at(environ["WARMRANK_STORE"]),), trust=locate_trust(trust, base=Path.cwd())
    )
    return Access(config=decided(config), timeout_s=timeout_s)


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The call's outcome, in a thread of its own; raises what it raised, or TimeoutError while it goes on."""
    (found,) = all_within([lambda: (call(),)], timeout_s=timeout_s)
    if found is None:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return found[0]
