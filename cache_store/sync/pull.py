"""Pulling a directory of another tool: verified copies, laid out as the tool left them.

Invariants: nothing gets its name before every file is verified, changed where it must name another path,
and flushed, because other tools verify nothing; an absent or empty directory appears by one rename; of one
that holds files every one that was pushed is read, unless the index beside it tells its bytes, and only those
that it lacks come, or those that are cut short: where others differ nothing does, unless they are to be
replaced. What an earlier pull under the same keys put there and the listing no longer names is told, and goes
where files are replaced, if nobody changed it since; nothing else is ever removed. Files
are private to this user (0600, or 0700 where the owner could execute them). A file lock keeps
the processes of a node from copying at once, which saves work only; it is held around the whole of a pull,
also where that is tried again because a part of the store fell silent.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.marks import admit, check_marks
from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir, open_owned, os_errors_are_unusable
from warmrank.cache_store.cache_dir.single_flight import LOCK_TIMEOUT_S, single_flight
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import NotInStore, UnusableCache
from warmrank.cache_store.fetch.blobs import blob_faults
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.parallel import NUM_THREADS, each
from warmrank.cache_store.records.directory_listing import (
    ListedFile,
    StoredListing,
    listing_key,
    nearest_listing,
    newest_listing,
)
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.sync.materialize import Copies, lay_out, refuse_obstacles, refuse_others
from warmrank.cache_store.sync.tools import Relocation, beside, is_ours, relocation, tool_named

logger = logging.getLogger(__name__)

_INDEX = "files"
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """Outcome of pulling one directory.

    Attributes:
        directory: which.
        key: key of its listings.
        pushed: when the listing that was taken was made.
        num_files: files in that listing.
        num_new: files that the directory lacked, or had cut short.
        num_replaced: files that it had with other bytes.
        num_removed: files of an earlier pull that were removed.
        num_kept: files that it had already, with the same bytes, which were not touched.
        bytes_copied: bytes of the new and the replaced ones.
        num_rewritten: those of them in which the directory's path was replaced.
        problems: listings that could not be used, and files of an earlier pull that stay, one line each.
    """

    directory: str
    key: str
    pushed: str
    num_files: int
    num_new: int
    num_replaced: int
    num_removed: int
    num_kept: int
    bytes_copied: int
    num_rewritten: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan:
    """What is to be restored where.

    Attributes:
        tool: whose directory.
        root: where to.
        stored: the newest listing that can be used.
        moved: what of it must name the new path.
        problems: listings that could not be used, one line each.
    """

    tool: str
    root: Path
    stored: StoredListing
    moved: Relocation
    problems: tuple[str, ...]

    @property
    def key(self) -> str:
        """Key of the directory's listings."""
        return listing_key(self.tool, self.stored.listing.components)


def plan_pull(documents: Documents, tool: str, root: Path, components: Mapping[str, str]) -> PullPlan:
    """Find the newest directory of ``tool`` that was pushed under these components; nothing is written.

    Raises:
        RefusedCache: ``root`` is refused for what is in it, whether or not anything was pushed.
        NotInStore: none was pushed (says what differs from the nearest).
        Conflict: it names its old path in a way that nobody here knows how to change.
        StoreUnavailable: the store cannot be read.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - the tool sees this path, not the resolved one
    # After a miss the tool uses what is there.
    check_marks(root, documents.trust.policy, documents.trust.revoked)
    problems: list[str] = []
    stored = _newest(documents, listing_key(tool, dict(components)), tool, dict(components), problems)
    moved = relocation(tool_named(tool), stored.listing.files, old=stored.listing.root, new=str(root))
    return PullPlan(tool=tool, root=root, stored=stored, moved=moved, problems=tuple(problems))


@contextlib.contextmanager
def pull_lock(root: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a directory to be pulled, which is made if absent; see `single_flight`.

    Raises:
        UnusableCache: ``root`` cannot be written, or another user could.
    """
    root = root.absolute()
    ensure_cache_dir(root)
    with single_flight(beside(root), timeout_s=timeout_s):
        yield


def pull(documents: Documents, plan: PullPlan, *, replace: bool = False) -> PullReport:
    """Restore what was planned; the caller holds `pull_lock`.

    Args:
        documents: the store's.
        plan: what was planned.
        replace: files that are there with other bytes are replaced, those of an earlier pull removed.

    Raises:
        NotInStore: blobs of it are missing.
        Conflict: as `lay_out` and `refuse_obstacles`.
        Corrupt: a blob is damaged, and now in quarantine; nothing was laid out.
        UnusableCache: the directory cannot be written, or another user could; or as `admit`.
        StoreUnavailable: the store cannot be read.
    """
    root = plan.root
    admit(root, documents.trust.policy, documents.trust.revoked)
    ensure_cache_dir(beside(root))
    # Our own names are none of the tool's: they would decide what may be done with the directory.
    files = [file for file in plan.stored.listing.files if not is_ours(file.path)]
    index = DigestIndex.open(root, _INDEX, at=beside(root), opened=open_owned)
    laid_before = DigestIndex.open(root, f"pulled-{plan.key}", at=beside(root), opened=open_owned)
    stale = _stale(laid_before, {file.path for file in files}, root, index)
    removed = [path for path, is_unchanged in stale.items() if replace and is_unchanged]
    refuse_obstacles(files, removed, root)
    wanted, there = _look(files, plan.moved, root, index, replace=replace)
    _check_complete(documents.backend, wanted)
    laid = lay_out(
        Copies(
            documents=documents,
            signer_id=plan.stored.signer_id,
            files=wanted,
            there=there,
            moved=plan.moved,
            replace=replace,
            stale=removed,
        ),
        root,
    )
    come = {*laid.new, *laid.replaced}
    for file in wanted:
        if file.path in come and file.path not in plan.moved.paths:
            index.remember_own(root / file.path, file.digest)
            laid_before.remember_own(root / file.path, file.digest)
    for path in plan.moved.paths & come:
        with contextlib.suppress(UnusableCache, OSError):  # the tool was faster, so it is the tool's
            laid_before.remember_own(root / path, index.digest(root / path))
    index.save()
    laid_before.save()
    mark_used(documents.backend, plan.stored.name)
    logger.info("Pulled %s of %s: %d of %d files came", root, plan.tool, len(come), len(files))
    return PullReport(
        directory=str(root),
        key=plan.key,
        pushed=plan.stored.listing.created,
        num_files=len(files),
        num_new=len(laid.new),
        num_replaced=len(laid.replaced),
        num_removed=len(removed),
        num_kept=len(files) - len(come),
        bytes_copied=sum(file.size_bytes for file in wanted if file.path in come),
        num_rewritten=len(plan.moved.paths & come),
        problems=(*plan.problems, *_staying(stale, removed)),
    )


def _stale(
    laid_before: DigestIndex, named: Collection[str], root: Path, index: DigestIndex
) -> dict[str, bool]:
    """Files that earlier pulls put there and the listing does not name: whether each is as it was then."""
    real = root.resolve()
    return {
        path: _is_there(path, digest, root, index)[1]
        for path, digest in laid_before.remembered().items()
        # What is reached through a link lies elsewhere by now.
        if path not in named and os.path.lexists(root / path) and (root / path).resolve() == real / path
    }


def _staying(stale: Mapping[str, bool], removed: Collection[str]) -> Iterator[str]:
    """A line for the files of an earlier pull that stay as they came, and one for those that were changed."""
    for is_unchanged, why in (
        (True, "not in this one: pull with --replace to have them removed"),
        (False, "not in this one, and changed since: remove them by hand"),
    ):
        staying = sorted(path for path in stale if stale[path] == is_unchanged and path not in removed)
        if staying:
            more = f" and {len(staying) - _SHOWN} more" if len(staying) > _SHOWN else ""
            yield f"{', '.join(staying[:_SHOWN])}{more}: of an earlier pull, {why}"


def _look(
    files: list[ListedFile], moved: Relocation, root: Path, index: DigestIndex, *, replace: bool
) -> tuple[list[ListedFile], frozenset[str]]:
    """Files to be copied, to be laid out or to compare; and the paths of those that are there."""
    answers = each(
        lambda file: _is_there(file.path, file.digest, root, index), files, num_threads=NUM_THREADS
    )
    found = dict(zip(files, answers, strict=True))
    others = [
        file.path
        for file, (size_bytes, is_equal) in found.items()
        # What is shorter may be cut short; what is rewritten has other bytes than its blob.
        if not is_equal and size_bytes >= file.size_bytes and file.path not in moved.paths
    ]
    if not replace:
        refuse_others(others, root)
    wanted = [file for file, (_, is_equal) in found.items() if not is_equal or file.path in moved.paths]
    return wanted, frozenset(file.path for file in wanted if found[file][0] >= 0)


def _is_there(name: str, digest: Digest, root: Path, index: DigestIndex) -> tuple[int, bool]:
    """Size of what has a file's name, -1 for nothing; and whether it holds these bytes."""
    path = root / name
    try:
        with os_errors_are_unusable("file", path):
            try:
                size_bytes = path.lstat().st_size
                return size_bytes, size_bytes == digest.size_bytes and index.digest(path) == digest
            except (FileNotFoundError, NotADirectoryError):
                return -1, False
    except UnusableCache:
        return digest.size_bytes, False


def _newest(
    documents: Documents, key: str, tool: str, components: dict[str, str], problems: list[str]
) -> StoredListing:
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
