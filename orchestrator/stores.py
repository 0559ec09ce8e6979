"""Opens the store that a config names."""

from __future__ import annotations

from cache_store.store import Store
from cache_store.trust import load_trust
from orchestrator.config_models import StoreConfig, TrustConfig


def open_store(config: StoreConfig, *, create: bool = True) -> Store:
    """Open the store with the trust that the config asks for; make it if need be.

    Raises:
        cache_store.errors.StoreUnavailable: it cannot be read or written.
        cache_store.errors.StoreError: it is no store this release reads, or a key file is unusable.
    """
    trust = config.trust
    keys = load_trust(trust.policy, signing_key=trust.signing_key, trusted_keys=trust.trusted_keys)
    return Store.open(config.path, trust=keys, create=create)


def may_publish(trust: TrustConfig) -> bool:
    """Whether manifests that others would accept can be made here; where not, the store is only read."""
    return trust.policy != "require" or trust.signing_key is not None
