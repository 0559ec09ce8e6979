"""warmrank's store: bytes, digests, manifests, publish, fetch and trust; knows neither torch nor ray.

The public names below are loaded at their first use (PEP 562): a rank's warm load needs
`cache_store.node.local` and `cache_store.keys` only, and must not pay for pydantic and cryptography. The
function `cache_store.seed.seed` is not among them, because its module has its name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmrank.cache_store.backends.backend import BlobBackend, NewFile
    from warmrank.cache_store.canonical import canonical_json
    from warmrank.cache_store.connect import TierSpec, open_store
    from warmrank.cache_store.digests import Digest, digest_bytes, digest_file
    from warmrank.cache_store.errors import (
        Conflict,
        Corrupt,
        NewerFormat,
        NotInStore,
        StoreError,
        StoreUnavailable,
        Untrusted,
        UnusableCache,
    )
    from warmrank.cache_store.explain import Nearest, explain_miss, nearest
    from warmrank.cache_store.fetching.reports import FetchOutcome, FetchReport
    from warmrank.cache_store.keys import ComponentChange, changed_components, key_of
    from warmrank.cache_store.publishing.reports import BlobReport, PublishReport
    from warmrank.cache_store.records.manifest import (
        ArtifactEntry,
        CaptureEntry,
        LaunchRecord,
        PartitionManifest,
        PartitionRef,
        RequestEntry,
        partition_key,
        utc_now,
    )
    from warmrank.cache_store.seed import SeedReport
    from warmrank.cache_store.signing.trust import (
        Signer,
        Trust,
        TrustPolicy,
        generate_key_pair,
        load_public_key,
        load_signer,
        load_trust,
    )
    from warmrank.cache_store.store import Store
    from warmrank.cache_store.upkeep.reports import EvictReport, VerifyReport

__all__ = [
    "ArtifactEntry",
    "BlobBackend",
    "BlobReport",
    "CaptureEntry",
    "ComponentChange",
    "Conflict",
    "Corrupt",
    "Digest",
    "EvictReport",
    "FetchOutcome",
    "FetchReport",
    "LaunchRecord",
    "Nearest",
    "NewFile",
    "NewerFormat",
    "NotInStore",
    "PartitionManifest",
    "PartitionRef",
    "PublishReport",
    "RequestEntry",
    "SeedReport",
    "Signer",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "TierSpec",
    "Trust",
    "TrustPolicy",
    "Untrusted",
    "UnusableCache",
    "VerifyReport",
    "canonical_json",
    "changed_components",
    "digest_bytes",
    "digest_file",
    "explain_miss",
    "generate_key_pair",
    "key_of",
    "load_public_key",
    "load_signer",
    "load_trust",
    "nearest",
    "open_store",
    "partition_key",
    "utc_now",
]

_HOME = {
    "backends.backend": ("BlobBackend", "NewFile"),
    "canonical": ("canonical_json",),
    "digests": ("Digest", "digest_bytes", "digest_file"),
    "errors": (
        "Conflict",
        "Corrupt",
        "NewerFormat",
        "NotInStore",
        "StoreError",
        "StoreUnavailable",
        "Untrusted",
        "UnusableCache",
    ),
    "explain": ("Nearest", "explain_miss", "nearest"),
    "keys": ("ComponentChange", "changed_components", "key_of"),
    "records.manifest": (
        "ArtifactEntry",
        "CaptureEntry",
        "LaunchRecord",
        "PartitionManifest",
        "PartitionRef",
        "RequestEntry",
        "partition_key",
        "utc_now",
    ),
    "fetching.reports": ("FetchOutcome", "FetchReport"),
    "publishing.reports": ("BlobReport", "PublishReport"),
    "upkeep.reports": ("EvictReport", "VerifyReport"),
    "connect": ("TierSpec", "open_store"),
    "seed": ("SeedReport",),
    "store": ("Store",),
    "signing.trust": (
        "Signer",
        "Trust",
        "TrustPolicy",
        "generate_key_pair",
        "load_public_key",
        "load_signer",
        "load_trust",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    """Import the module of a public name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
