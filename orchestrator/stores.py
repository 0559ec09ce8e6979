"""Opens the store that a config names."""

from __future__ import annotations

from cache_store.store import Store
from cache_store.trust import load_trust
from orchestrator.config_models import StoreConfig


def open_store(config: StoreConfig) -> Store:
    """Open the store with the trust that the config asks for.

    Raises:
        cache_store.errors.StoreUnavailable: it cannot be read or written.
        cache_store.errors.StoreError: it is no store this release reads, or a key file is unusable.
    """
    trust = config.trust
    keys = load_trust(trust.policy, signing_key=trust.signing_key, trusted_keys=trust.trusted_keys)
    return Store.open(config.path, trust=keys)
