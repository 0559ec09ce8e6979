"""Reads everything in a store and a cache directory again; only a repair changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.local import companions, holds_what_it_says, is_variant_name
from warmrank.cache_store.cache_dir.node_files import kept_files
from warmrank.cache_store.cache_dir.private_files import check_private, digest_private
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.gc.verify import VerifyReport
from warmrank.cache_store.progress import OnProgress
from warmrank.cache_store.store import Store
from warmrank.orchestrator.errors import BadArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Outcome of reading a cache directory."""

    path: str
    num_artifacts: int
    num_files: int  # artifacts, those beside them, such as compiled kernels, and node artifacts
    size_bytes: int
    faults: tuple[str, ...]  # empty if every file is there, whole and private


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Outcome of `verify`; ``store`` and ``cache`` are None where none was named."""

    location: str  # the store's
    store: VerifyReport | None
    signatures_checked: bool  # by a config's trust policy; without a config nobody is trusted
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

    Raises:
        BadArgument: there is no such cache directory.
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
    """Check that every artifact below a cache directory, and each file beside it, is private and whole."""
    if not cache_dir.is_dir():
        raise BadArgument(
            f"no cache directory at {cache_dir}; expected the cache_dir of a launch on this node"
        )
    faults: list[str] = []
    artifacts = cached_files(cache_dir)
    needed: set[Path] = set()
    for path in artifacts:
        needed |= _judge_artifact(path, needed, faults)
    beside = {found for path in artifacts for found in companions(path.parent)}
    of_node = kept_files(cache_dir)
    named = [(path, True) for path in of_node] + [(path, False) for path in sorted(beside - needed)]
    for path, is_of_node in named:  # files whose names say what is in them
        try:
            digest = digest_private(path)
        except (StoreError, OSError) as error:
            faults.append(str(error))
            continue
        if not (digest.sha256 == path.name if is_of_node else holds_what_it_says(path.name, digest)):
            faults.append(f"{path}: its bytes have {digest}")
    files = (*artifacts, *beside, *of_node)
    return CacheReport(
        path=str(cache_dir),
        num_artifacts=len(artifacts),
        num_files=len(files),
        size_bytes=sum(path.lstat().st_size for path in files),
        faults=tuple(faults),
    )


def _judge_artifact(path: Path, judged: set[Path], faults: list[str]) -> set[Path]:
    """Check an artifact, and the files beside it that were not ``judged`` yet; return all their paths."""
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
        if path.parent / file.name not in judged:
            try:
                verified(path.parent, file)
            except (StoreError, ArtifactCorrupt) as error:
                faults.append(str(error))
    return {path.parent / file.name for file in artifact.files}


def cached_files(cache_dir: Path) -> tuple[Path, ...]:
    """Every artifact below a cache directory, in a fixed order."""
    return tuple(sorted(path for path in cache_dir.rglob("*") if is_variant_name(path.name)))
