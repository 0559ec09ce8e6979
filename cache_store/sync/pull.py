"""Pulling a directory of another tool: verified copies, laid out as the tool left them.

Invariants: nothing gets its name before every file is verified, changed where it must name another path,
and flushed, because other tools verify nothing; an absent or empty directory appears by one rename, one
that holds files gets those that it lacks, and none of its own is replaced; files are private to this user
(0600, or 0700 where the owner could execute them). A file lock keeps the processes of a node from copying at
once, which saves work only; it is held around the whole of a pull, also where that is tried again because a
part of the store fell silent.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cache_store.backends.backend import BlobBackend
from cache_store.errors import NotInStore
from cache_store.fetching.completeness import blob_faults
from cache_store.node.admission import admit
from cache_store.node.private_files import ensure_cache_dir
from cache_store.node.single_flight import LOCK_TIMEOUT_S, single_flight
from cache_store.node.unverified import mark_unverified
from cache_store.records.directory_listing import DirectoryListing, ListedFile, listing_key
from cache_store.records.documents import Documents
from cache_store.retention.last_use import mark_used
from cache_store.sync.laying_out import beside, lay_out
from cache_store.sync.newest import nearest_listing, newest_listing
from cache_store.sync.relocate import Relocation, relocation
from cache_store.sync.tools import tool_named

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan:
    """What is to be restored where.

    Attributes:
        tool: whose directory.
        root: where to.
        name: in the store, of the newest listing that can be used.
        listing: what it says.
        moved: what of it must name the new path.
        problems: listings that could not be used, one line each.
    """

    tool: str
    root: Path
    name: str
    listing: DirectoryListing
    moved: Relocation
    problems: tuple[str, ...]

    @property
    def key(self) -> str:
        """Key of the directory's listings."""
        return listing_key(self.tool, self.listing.components)


def plan_pull(documents: Documents, tool: str, root: Path, components: Mapping[str, str]) -> PullPlan:
    """Find the newest directory of ``tool`` that was pushed under these components; nothing is written.

    Raises:
        NotInStore: none was pushed (says what differs from the nearest).
        Conflict: it names its old path in a way that nobody here knows how to change.
        StoreUnavailable: the store cannot be read.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - the tool sees this path, not the resolved one
    problems: list[str] = []
    name, listing = _newest(documents, listing_key(tool, dict(components)), tool, dict(components), problems)
    moved = relocation(tool_named(tool), listing.files, old=listing.root, new=str(root))
    return PullPlan(tool=tool, root=root, name=name, listing=listing, moved=moved, problems=tuple(problems))


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


def pull(documents: Documents, plan: PullPlan) -> PullReport:
    """Restore what was planned; the caller holds `pull_lock`.

    Raises:
        NotInStore: blobs of it are missing.
        Corrupt: a blob is damaged, and now in quarantine; nothing was laid out.
        UnusableCache: the directory cannot be written, or another user could.
        StoreUnavailable: the store cannot be read.
    """
    root, files = plan.root, plan.listing.files
    for directory in (root, beside(root)):
        ensure_cache_dir(directory)
    if plan.tool == _ARTIFACTS:
        admit(root, documents.trust.policy, documents.trust.revoked)
    absent = [file for file in files if not (root / file.path).exists()]
    _check_complete(documents.backend, absent)
    if absent and plan.tool == _ARTIFACTS:
        mark_unverified(root, documents.trust.policy)
    placed = lay_out(documents.backend, absent, root, plan.moved)
    mark_used(documents.backend, plan.name)
    logger.info("Pulled %s of %s: %d files new, %d kept", root, plan.tool, placed, len(files) - placed)
    return PullReport(
        directory=str(root),
        key=plan.key,
        pushed=plan.listing.created,
        num_files=len(files),
        num_new=placed,
        num_kept=len(files) - placed,
        bytes_copied=sum(file.size_bytes for file in absent),
        num_rewritten=len(plan.moved.paths & {file.path for file in absent}),
        problems=plan.problems,
    )


def _newest(
    documents: Documents, key: str, tool: str, components: dict[str, str], problems: list[str]
) -> tuple[str, DirectoryListing]:
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
