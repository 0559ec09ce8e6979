"""The plugin's settings, and its access to the store: whom it trusts, and how long it may take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.store import StoreConfig, TrustConfig, locate_trust, tier_at
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.store.stores import (
    decided,
    is_writable,
    load,
    may_publish,
    open_store,
    open_to_fetch,
)

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.cache_store.sync.pull import PullReport
    from warmrank.cache_store.sync.push import PushReport
    from warmrank.orchestrator.vllm_plugin.entries import Entry

TIMEOUT_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The store of this process.

    Attributes:
        config: its place, and whom to trust; the policy is decided.
        timeout_s: the longest that vLLM waits for it.
    """

    config: StoreConfig
    timeout_s: float

    def admit(self, entry: Path) -> None:
        """Refuse an entry on this disk for whose copies it holds; raises `RefusedCache`."""
        from warmrank.cache_store.cache_dir.marks import check_marks

        trust = load(self.config, to_sign=False)
        check_marks(entry, trust.policy, trust.revoked)

    def pull(self, entry: Entry, components: Mapping[str, str]) -> PullReport:
        """Lay the stored entry out, verified; raises `StoreError`."""
        return open_to_fetch(self.config).pull_directory(entry.kind.value, entry.root, components)

    @property
    def publishes(self) -> bool:
        """The store may be written, and what is published could be believed."""
        return is_writable(self.config.tiers) and may_publish(self.config.trust)

    def to_publish(self) -> Store:
        """The store, opened to be written; raises `StoreError`."""
        return open_store(self.config)

    @staticmethod
    def push(store: Store, entry: Entry, components: Mapping[str, str]) -> PushReport:
        """Publish an entry; raises `StoreError`."""
        return store.push_directory(entry.kind.value, entry.root, components)


def access(environ: Mapping[str, str] = os.environ) -> Access:
    """The access that this process's environment asks for.

    ``WARMRANK_STORE`` is the place, ``WARMRANK_SIGNING_KEY`` a key's name in the keyring or a PEM file,
    ``WARMRANK_KEYRING`` the keyring, ``WARMRANK_TRUST`` the policy, ``WARMRANK_TIMEOUT_S`` the time-out.

    Raises:
        BadArgument: a variable cannot be used.
        StoreError: the keyring is damaged.
    """
    policy, timeout = environ.get("WARMRANK_TRUST"), environ.get("WARMRANK_TIMEOUT_S")
    if policy not in {None, "require", "warn", "off"}:
        raise BadArgument(f"WARMRANK_TRUST: expected require, warn or off, found {policy!r}")
    try:
        timeout_s = float(timeout) if timeout else TIMEOUT_S
    except ValueError:
        raise BadArgument(f"WARMRANK_TIMEOUT_S: expected seconds, found {timeout!r}") from None
    trust = TrustConfig.model_validate(
        {
            "policy": policy,
            "signing_key": _path(environ.get("WARMRANK_SIGNING_KEY")),
            "keyring": _path(environ.get("WARMRANK_KEYRING")),
        }
    )
    config = StoreConfig(
        tiers=(tier_at(environ["WARMRANK_STORE"]),), trust=locate_trust(trust, base=Path.cwd())
    )
    return Access(config=decided(config), timeout_s=timeout_s)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The call's outcome, in a thread of its own; raises what it raised, or TimeoutError while it goes on."""
    errors: list[Exception] = []

    def caught() -> tuple[T, ...]:
        try:
            return (call(),)
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)
            return ()

    (found,) = all_within([caught], timeout_s=timeout_s)
    if found is None:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if errors:
        raise errors[0]
    return found[0]
