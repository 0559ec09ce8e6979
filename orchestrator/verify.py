"""Reading everything in a store and a cache directory again, and saying what is wrong.

Nothing is changed, unless the store is to be repaired.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cache_store.errors import StoreError
from cache_store.fetching.progress import OnProgress
from cache_store.node.local import check_private, is_variant_name
from cache_store.store import Store
from cache_store.upkeep.reports import VerifyReport
from orchestrator.errors import NothingThere


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Outcome of reading a cache directory.

    Attributes:
        path: the directory.
        num_files: artifacts read.
        size_bytes: their size.
        faults: one line each; empty when every artifact is whole and private.
    """

    path: str
    num_files: int
    size_bytes: int
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Outcome of `verify`.

    Attributes:
        location: the store's location; empty where only a cache was named.
        store: what reading the store gave; none likewise.
        signatures_checked: the config's trust policy was applied; without a config nobody is trusted.
        cache: what reading the cache directory gave; none where there is no cache directory.
        faults: all faults.
    """

    location: str
    store: VerifyReport | None
    signatures_checked: bool
    cache: CacheReport | None
    faults: tuple[str, ...]


def verify(
    store: Store | None,
    cache_dir: Path | None,
    *,
    signatures_checked: bool,
    repair: bool = False,
    on_progress: OnProgress | None = None,
) -> Verified:
    """Hash and judge everything in a store and a cache directory, either of which may be absent.

    Args:
        store: the store.
        cache_dir: the cache directory.
        signatures_checked: the store was opened with the trust policy of a config.
        repair: repair the store as far as that goes; see `cache_store.upkeep.audit.verify_store`.
        on_progress: told now and then how far the store is.

    Raises:
        StoreUnavailable: the store cannot be listed.
        NothingThere: there is no such cache directory.
    """
    of_store = store.verify(repair=repair, on_progress=on_progress) if store else None
    of_cache = verify_cache(cache_dir) if cache_dir else None
    return Verified(
        location=store.location if store else "",
        store=of_store,
        signatures_checked=signatures_checked,
        cache=of_cache,
        faults=(*(of_store.faults if of_store else ()), *(of_cache.faults if of_cache else ())),
    )


def verify_cache(cache_dir: Path) -> CacheReport:
    """Check that every artifact below a cache directory is private and whole.

    Raises:
        NothingThere: there is no such directory.
    """
    # Imported here, because it imports torch.
    from worker.artifact import read
    from worker.errors import ArtifactCorrupt

    if not cache_dir.is_dir():
        msg = f"no cache directory at {cache_dir}; expected the cache_dir of a launch on this node"
        raise NothingThere(msg)
    faults: list[str] = []
    sizes: list[int] = []
    for path in cached_files(cache_dir):
        sizes.append(path.lstat().st_size)
        try:
            check_private(path)
            read(path)
        except (StoreError, ArtifactCorrupt, OSError) as error:
            faults.append(str(error))
    return CacheReport(path=str(cache_dir), num_files=len(sizes), size_bytes=sum(sizes), faults=tuple(faults))


def cached_files(cache_dir: Path) -> tuple[Path, ...]:
    """Every artifact below a cache directory, in a fixed order."""
    return tuple(sorted(path for path in cache_dir.rglob("*") if is_variant_name(path.name)))
