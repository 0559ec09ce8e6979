"""Reading everything in a store and a cache directory again, and saying what is wrong.

Nothing is changed, unless the store is to be repaired.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.local import companions, holds_what_it_says, is_variant_name
from warmrank.cache_store.cache_dir.node_files import kept_files
from warmrank.cache_store.cache_dir.private_files import check_private, digest_private
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.gc.verify import VerifyReport
from warmrank.cache_store.progress import OnProgress
from warmrank.cache_store.store import Store
from warmrank.orchestrator.errors import NothingThere


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Outcome of reading a cache directory.

    Attributes:
        path: the directory.
        num_artifacts: artifacts read.
        num_files: files read: artifacts, those beside them, such as compiled kernels, and node artifacts.
        size_bytes: their size.
        faults: one line each; empty when every file is there, whole and private.
    """

    path: str
    num_artifacts: int
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
        repair: repair the store as far as that goes; see `cache_store.gc.verify.verify_store`.
        on_progress: told now and then how far the store is.

    Raises:
        StoreUnavailable: the store cannot be listed.
        NothingThere: there is no such cache directory.
    """
    of_store = store.verify(repair=repair, cache_root=cache_dir, on_progress=on_progress) if store else None
    of_cache = verify_cache(cache_dir) if cache_dir else None
    return Verified(
        location=store.location if store else "",
        store=of_store,
        signatures_checked=signatures_checked,
        cache=of_cache,
        faults=(*(of_store.faults if of_store else ()), *(of_cache.faults if of_cache else ())),
    )


def verify_cache(cache_dir: Path) -> CacheReport:
    """Check that every artifact below a cache directory, and each file beside it, is private and whole.

    Raises:
        NothingThere: there is no such directory.
    """
    if not cache_dir.is_dir():
        msg = f"no cache directory at {cache_dir}; expected the cache_dir of a launch on this node"
        raise NothingThere(msg)
    faults: list[str] = []
    artifacts = cached_files(cache_dir)
    needed: set[Path] = set()
    for path in artifacts:
        needed |= _judge_artifact(path, needed, faults)
    beside = {found for path in artifacts for found in companions(path.parent)}
    of_node = kept_files(cache_dir)
    for path in of_node:
        faults += _judge_kept(path)
    for path in sorted(beside - needed):
        faults += _judge_orphan(path)
    files = (*artifacts, *beside, *of_node)
    return CacheReport(
        path=str(cache_dir),
        num_artifacts=len(artifacts),
        num_files=len(files),
        size_bytes=sum(path.lstat().st_size for path in files),
        faults=tuple(faults),
    )


def _judge_artifact(path: Path, judged: Collection[Path], faults: list[str]) -> set[Path]:
    """Check an artifact, and the files beside it that were not ``judged`` yet; the paths of these files."""
    # Imported here, because they import torch.
    from warmrank.worker.errors import ArtifactCorrupt
    from warmrank.worker.runtime.artifact import read, verified

    try:
        check_private(path)
        artifact, _, _ = read(path)
    except (StoreError, ArtifactCorrupt, OSError) as error:
        faults.append(str(error))
        return set()
    for file in artifact.files:
        if path.parent / file.name in judged:
            continue
        try:
            verified(path.parent, file)
        except (StoreError, ArtifactCorrupt) as error:
            faults.append(str(error))
    return {path.parent / file.name for file in artifact.files}


def _judge_orphan(path: Path) -> tuple[str, ...]:
    """What is wrong with a file that no readable artifact names: its own name says what is in it."""
    try:
        digest = digest_private(path)
    except StoreError as error:
        return (str(error),)
    return () if holds_what_it_says(path.name, digest) else (f"{path}: its bytes have {digest}",)


def _judge_kept(path: Path) -> tuple[str, ...]:
    """What is wrong with a node artifact, whose name says what is in it."""
    try:
        digest = digest_private(path)
    except (StoreError, OSError) as error:
        return (str(error),)
    return () if digest.sha256 == path.name else (f"{path}: its bytes have {digest}",)


def cached_files(cache_dir: Path) -> tuple[Path, ...]:
    """Every artifact below a cache directory, in a fixed order."""
    return tuple(sorted(path for path in cache_dir.rglob("*") if is_variant_name(path.name)))
