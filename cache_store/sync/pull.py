"""Pulling a directory of another tool: verified copies, laid out as the tool left them.

Invariants: nothing gets its name before every file is verified, changed where it must name another path,
and flushed, because other tools verify nothing; an absent or empty directory appears by one rename, one
that holds files gets those that it lacks, and none of its own is replaced; files are private to this user
(0600, or 0700 where the owner could execute them). A file lock keeps the processes of a node from copying at
once, which saves work only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cache_store.backends.backend import BlobBackend
from cache_store.backends.durability import choose_flush, flush_all
from cache_store.digests import digest_bytes
from cache_store.errors import NotInStore
from cache_store.fetching.completeness import blob_faults
from cache_store.fetching.copying import BlobSource, copy_blob
from cache_store.layout import directory_name
from cache_store.node.private_files import (
    discard_tree,
    ensure_cache_dir,
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from cache_store.node.single_flight import LOCK_TIMEOUT_S, single_flight
from cache_store.node.unverified import mark_unverified
from cache_store.records.directory_listing import DirectoryListing, ListedFile, listing_key
from cache_store.records.documents import Documents
from cache_store.retention.last_use import mark_used
from cache_store.sync.newest import nearest_listing, newest_listing
from cache_store.sync.relocate import Relocation, relocation
from cache_store.sync.tools import tool_named

logger = logging.getLogger(__name__)

_MAX_THREADS = 8
_STAGING = ".tmp-"
_ARTIFACTS = "torchair"  # whose directory a launch may use, so it must know what nobody signed
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """Outcome of pulling one directory.

    Attributes:
        directory: which.
        key: key of its listings.
        pushed: when the listing that was taken was made.
        num_files: files in that listing.
        num_new: files that the directory lacked.
        num_kept: files that it had already, which were not touched.
        bytes_copied: bytes of the new ones.
        num_rewritten: new files in which the directory's path was replaced.
        problems: listings that could not be used, one line each.
    """

    directory: str
    key: str
    pushed: str
    num_files: int
    num_new: int
    num_kept: int
    bytes_copied: int
    num_rewritten: int
    problems: tuple[str, ...]


def pull(
    documents: Documents,
    tool: str,
    root: Path,
    components: Mapping[str, str],
    *,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> PullReport:
    """Restore the newest directory of ``tool`` that was pushed under these components at ``root``.

    Raises:
        NotInStore: none was pushed (says what differs from the nearest), or blobs of it are missing.
        Conflict: it names its old path in a way that nobody here knows how to change.
        Corrupt: a blob is damaged, and now in quarantine; nothing was laid out.
        UnusableCache: ``root`` cannot be written, or another user could.
        StoreUnavailable: the store cannot be read.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - the tool sees this path, not the resolved one
    key = listing_key(tool, dict(components))
    problems: list[str] = []
    listing = _newest(documents, key, tool, dict(components), problems)
    moved = relocation(tool_named(tool), listing.files, old=listing.root, new=str(root))
    ensure_cache_dir(root)
    ensure_cache_dir(_beside(root))
    with single_flight(_beside(root), timeout_s=lock_timeout_s):
        absent = [file for file in listing.files if not (root / file.path).exists()]
        _check_complete(documents.backend, absent)
        if absent and tool == _ARTIFACTS:
            mark_unverified(root, documents.trust.policy)
        placed = _lay_out(documents.backend, absent, root, moved)
    mark_used(documents.backend, directory_name(key, digest_bytes(listing.to_bytes()).sha256))
    report = PullReport(
        directory=str(root),
        key=key,
        pushed=listing.created,
        num_files=len(listing.files),
        num_new=placed,
        num_kept=len(listing.files) - placed,
        bytes_copied=sum(file.size_bytes for file in absent),
        num_rewritten=len(moved.paths & {file.path for file in absent}),
        problems=tuple(problems),
    )
    logger.info(
        "Pulled %s of %s: %d files new, %d kept, %d bytes",
        root,
        tool,
        report.num_new,
        report.num_kept,
        report.bytes_copied,
    )
    return report


def _newest(
    documents: Documents, key: str, tool: str, components: dict[str, str], problems: list[str]
) -> DirectoryListing:
    try:
        return newest_listing(documents, key, problems)
    except NotInStore as error:
        raise NotInStore(
            what=f"directory of {tool!r} with these components",
            where=f"key {key[:12]}",
            remedy="; ".join([nearest_listing(documents, tool, components), *problems[:_SHOWN]]),
        ) from error


def _check_complete(backend: BlobBackend, files: list[ListedFile]) -> None:
    faults = blob_faults(backend, (file.digest for file in files))
    wanting = [file.path for file in files if file.digest in faults]
    if not wanting:
        return
    more = f" and {len(wanting) - _SHOWN} more" if len(wanting) > _SHOWN else ""
    first = next(iter(faults.values()))
    if not isinstance(first, NotInStore):
        raise first
    what = f"blobs of {', '.join(wanting[:_SHOWN])}{more}"
    raise NotInStore(what=what, where="the store", remedy="push the directory again")


def _lay_out(backend: BlobBackend, files: list[ListedFile], root: Path, moved: Relocation) -> int:
    if not files:
        return 0
    with _staging(_beside(root)) as staging:
        with ThreadPoolExecutor(_MAX_THREADS) as pool:
            list(pool.map(lambda file: _stage(backend, file, staging, moved), files))
        with os_errors_are_unusable("directory", root):
            flush_all(_everything(staging), root=staging, flush=choose_flush(staging))
            return _place_all(staging, files, root)


def _place_all(staging: Path, files: list[ListedFile], root: Path) -> int:
    try:
        staging.rename(root)  # replaces an empty directory
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    else:
        flush_all([root.parent], root=root.parent, flush="fsync")
        return len(files)
    placed = sum(_place(staging / file.path, root / file.path) for file in files)
    flush_all({(root / file.path).parent for file in files}, root=root, flush=choose_flush(root))
    return placed


def _stage(backend: BlobBackend, file: ListedFile, staging: Path, moved: Relocation) -> None:
    path = staging / file.path
    with os_errors_are_unusable("directory", path.parent):
        make_private_directories(path.parent)
    source = BlobSource(backend=backend, sha256=file.sha256, size_bytes=file.size_bytes)
    copy_blob(source, path, _uncounted)
    with os_errors_are_unusable("file", path):
        if file.path in moved.paths:
            path.write_bytes(moved.apply(path.read_bytes()))
        if file.executable:
            path.chmod(0o700)


def _uncounted(num_bytes: int) -> None:
    """Nobody watches the progress of a pull."""


def _place(staged: Path, target: Path) -> bool:
    make_private_directories(target.parent)
    try:
        os.link(staged, target)  # a link does not replace; the staged name goes with its directory
    except FileExistsError:
        return False
    return True


def _everything(directory: Path) -> Iterator[Path]:
    yield directory
    yield from directory.rglob("*")


@contextlib.contextmanager
def _staging(beside: Path) -> Iterator[Path]:
    sweep_debris(beside, _STAGING)
    path = beside / f"{_STAGING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        discard_tree(path)


def _beside(root: Path) -> Path:
    """Where lock and staging lie: on the same file system, but not in the directory, which is the tool's."""
    return root.parent / f".{root.name}.warmrank"
