"""Pulling a directory of another tool: verified copies, laid out as the tool left them.

Nothing gets its name before every file is verified, changed where it must name another path, and flushed,
because other tools verify nothing; an absent or empty directory appears by one rename. Where files are there
with other bytes nothing is laid out, unless they are to be replaced or are cut short. What the
listing does not name stays. Files are private to this user (0600, or 0700), and the directory bears the marks
of those who vouch for them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from warmrank.cache_store.backends.directory import choose_flush, flush_all
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.marks import Permit, admit, check_marks, permit_copies
from warmrank.cache_store.cache_dir.private_files import (
    DIRECTORY_MODE,
    WRITING,
    date_back,
    ensure_cache_dir,
    make_directories_below,
    open_owned,
    os_errors_are_unusable,
    staging_directory,
    sweep_debris,
)
from warmrank.cache_store.cache_dir.single_flight import LOCK_TIMEOUT_S, single_flight
from warmrank.cache_store.digests import CHUNK_BYTES, Digest
from warmrank.cache_store.errors import Conflict, NotInStore, UnusableCache
from warmrank.cache_store.fetch.blobs import Blobs, missing_blobs
from warmrank.cache_store.parallel import NUM_THREADS, each
from warmrank.cache_store.publish import mark_used
from warmrank.cache_store.records.documents import (
    READERS,
    Documents,
    StoredListing,
    nearest_listing,
    newest_listing,
)
from warmrank.cache_store.records.manifest import ListedFile, listing_key
from warmrank.cache_store.sync.tools import Relocation, beside, is_ours, relocation, tool_named
from warmrank.cache_store.text import brief_names

logger = logging.getLogger(__name__)
_Kind = Literal["absent", "short", "equal", "other"]
"""Content of the place of a file: nothing, its beginning, its bytes, or others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """Outcome of pulling one directory."""

    directory: str
    key: str  # of its listings
    pushed: str  # when the listing that was taken was made
    num_files: int  # in that listing
    num_new: int  # that the directory lacked, or had cut short
    num_replaced: int  # that it had with other bytes
    num_kept: int  # that it had already, with the same bytes, which were not touched
    bytes_copied: int  # of the new and the replaced ones
    num_rewritten: int  # of them, those in which the directory's path was replaced
    problems: tuple[str, ...]  # listings that could not be used


def pull(
    documents: Documents, tool: str, root: Path, components: Mapping[str, str], *, replaces: bool = False
) -> PullReport:
    """Restore the newest directory of ``tool`` that was pushed under these components.

    With ``replaces``, files that are there with other bytes are replaced. One process of this node at a time.

    Raises:
        RefusedCache: ``root`` is refused for what is in it, whether or not anything was pushed.
        NotInStore: none was pushed (says what differs from the nearest), or blobs of it are missing.
        Conflict: it names its old path in a way that nobody here knows how to change; or files are there with
            other bytes, or stand where a directory should. Nothing was changed.
        Corrupt: a blob is damaged, and now in quarantine; nothing was laid out.
    """
    root, trust = Path(os.path.abspath(root)), documents.trust  # noqa: PTH100 - as the tool sees it
    check_marks(root, trust.policy, trust.revoked)  # after a miss the tool uses what is there
    documents = replace(documents, problems=[])  # they stand in the report
    stored = _find(documents, tool, dict(components))
    listing = stored.listing
    moved = relocation(tool_named(tool), listing.files, old=listing.root, new=str(root))
    ensure_cache_dir(root)
    with single_flight(beside(root), timeout_s=LOCK_TIMEOUT_S):
        return _lay_out(documents, stored, root, moved, replaces=replaces)


def _find(documents: Documents, tool: str, components: dict[str, str]) -> StoredListing:
    key = listing_key(tool, components)
    try:
        return newest_listing(documents, key)
    except NotInStore as error:
        raise NotInStore(
            what=f"directory of {tool!r} with these components",
            where=f"key {key[:12]}",
            remedy="; ".join([nearest_listing(documents, tool, components), *documents.problems[:3]]),
            refused=tuple(documents.problems),
        ) from error


def _lay_out(
    documents: Documents, stored: StoredListing, root: Path, moved: Relocation, *, replaces: bool
) -> PullReport:
    trust, place, listing = documents.trust, beside(root), stored.listing
    admit(root, trust.policy, trust.revoked)
    # Our own names are none of the tool's: they would decide what may be done with the directory.
    files = {file.path: file for file in listing.files if not is_ours(file.path)}
    index = DigestIndex(root, "files", at=place, opened=open_owned)
    _refuse_obstacles(files, root)
    are_there = each(
        lambda file: file.path not in moved.paths and _holds(root / file.path, file.digest, index),
        list(files.values()),
        num_threads=NUM_THREADS,
    )
    wanted = [file for file, is_there in zip(files.values(), are_there, strict=True) if not is_there]
    _check_complete(documents, wanted)
    kinds: dict[str, _Kind] = {}
    if wanted:
        sweep_debris(place, WRITING)
        with staging_directory(place) as staging, staging_directory(place) as scratch:
            _stage(documents, stored, moved, wanted, (staging, scratch))
            kinds = {file.path: _kind(root / file.path, staging / file.path) for file in wanted}
            if not replaces:
                _refuse_others([path for path, kind in kinds.items() if kind == "other"], root)
            kinds = {path: kind for path, kind in kinds.items() if kind != "equal"}
            if kinds:
                kinds = _place(staging, root, kinds, lambda: _permit(documents, stored, root))
    for path in kinds.keys() - moved.paths:
        index.remember_own(root / path, files[path].digest)
    index.save()
    mark_used(documents.places, stored.name)
    logger.info("Pulled %s of %s: %d of %d files came", root, listing.tool, len(kinds), len(files))
    num_replaced = sum(kind == "other" for kind in kinds.values())
    return PullReport(
        directory=str(root),
        key=listing_key(listing.tool, listing.components),
        pushed=listing.created,
        num_files=len(files),
        num_new=len(kinds) - num_replaced,
        num_replaced=num_replaced,
        num_kept=len(files) - len(kinds),
        bytes_copied=sum(files[path].size_bytes for path in kinds),
        num_rewritten=len(moved.paths & kinds.keys()),
        problems=tuple(documents.problems),
    )


def _permit(documents: Documents, stored: StoredListing, directory: Path) -> Permit:
    """Mark a directory, so that blobs of the listing may be copied below it."""
    signers = [stored.signer_id] if stored.signer_id else []
    return permit_copies(directory, documents.trust.policy, signers)


def _stage(
    documents: Documents,
    stored: StoredListing,
    moved: Relocation,
    files: Sequence[ListedFile],
    directories: tuple[Path, Path],
) -> None:
    """Make files in a staging directory, as they are to be; copies that are left behind lie in another."""
    staging, scratch = directories
    permit = _permit(documents, stored, staging)
    blobs = Blobs(places=documents.places, permit=permit, scratch=scratch)
    for directory in _directories(file.path for file in files):
        with os_errors_are_unusable("directory", staging / directory):
            (staging / directory).mkdir(mode=DIRECTORY_MODE)

    def stage(file: ListedFile) -> None:
        path = staging / file.path
        blobs.copy(file.sha256, file.size_bytes, path)
        with os_errors_are_unusable("file", path):
            if file.path in moved.paths:
                path.write_bytes(moved.apply(path.read_bytes()))
            if file.executable:
                path.chmod(0o700)
            date_back(path)

    each(stage, files, num_threads=READERS, size_bytes=sum(file.size_bytes for file in files))


def _kind(path: Path, staged: Path) -> _Kind:
    """Compare what is there with what should be."""
    try:
        with open_owned(path) as one, staged.open("rb") as two:
            while chunk := one.read(CHUNK_BYTES):
                if two.read(len(chunk)) != chunk:
                    return "other"
            return "short" if two.read(1) else "equal"
    except FileNotFoundError:
        return "absent"
    except (UnusableCache, OSError):  # no regular file, such as a link, or one that cannot be read
        return "other"


def _place(
    staging: Path, root: Path, kinds: Mapping[str, _Kind], mark: Callable[[], object]
) -> dict[str, _Kind]:
    """Give the staged files their names, with ``mark`` before; return those for which nobody was faster."""
    with os_errors_are_unusable("directory", root):
        inside = (f"{staging}/{path}" for path in (*_directories(kinds), *kinds))
        flush_all([str(staging), *inside], root=staging, flush=choose_flush(staging))
        try:
            staging.rename(root)  # replaces an empty directory
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            flush_all([root.parent], root=root.parent, flush="fsync")
            return dict(kinds)
        mark()
        for directory in {os.path.dirname(path) for path in kinds}:  # noqa: PTH120 - thousands
            make_directories_below(root, root / directory)
        placed: dict[str, _Kind] = {}
        for path, kind in kinds.items():
            with contextlib.suppress(FileExistsError):
                if kind == "absent":  # a link does not replace; the staged name goes with its directory
                    os.link(staging / path, root / path)
                else:
                    (staging / path).replace(root / path)
                placed[path] = kind
        changed = {os.path.dirname(f"{root}/{path}") for path in placed}  # noqa: PTH120
        flush_all({str(root), *changed}, root=root, flush=choose_flush(root))
        return placed


def _refuse_others(paths: Sequence[str], root: Path) -> None:
    """Refuse to lay out beside files that are there with other bytes."""
    if paths:
        raise Conflict(
            what="directory",
            where=str(root),
            expected="each file absent, or as it was pushed: files of two versions do not go together",
            actual=f"other bytes in {brief_names(sorted(paths))}; nothing was changed",
            remedy="pull with --replace to have them replaced, or pull into an empty directory",
        )


def _refuse_obstacles(files: Iterable[str], root: Path) -> None:
    """Refuse to lay out a directory where a file is, or the other way round."""
    kinds = {**dict.fromkeys(_directories(files), "directory"), **dict.fromkeys(files, "file")}
    for path, kind in kinds.items():
        place = f"{root}/{path}"  # as text: there may be thousands, and nearly all are absent
        with os_errors_are_unusable("file", place):
            try:
                mode = os.lstat(place).st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            # What is no directory where a file should be is compared with that.
            if stat.S_ISDIR(mode) == (kind == "directory"):
                continue
        found = "directory" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"
        raise Conflict(
            what="directory",
            where=str(root),
            expected=f"{path} to be a {kind}, or absent",
            actual=f"a {found}; nothing was changed",
            remedy="remove it",
        )


def _directories(paths: Iterable[str]) -> list[str]:
    """Every directory that files lie in, each after the one above it."""
    return sorted({str(directory) for path in paths for directory in Path(path).parents} - {"."})


def _holds(path: Path, digest: Digest, index: DigestIndex) -> bool:
    """Return True if a file that only this user can have written holds these bytes."""
    try:
        return path.lstat().st_size == digest.size_bytes and index.digest(path) == digest
    except (UnusableCache, OSError):
        return False


def _check_complete(documents: Documents, files: Sequence[ListedFile]) -> None:
    faults = missing_blobs(documents.places, (file.digest for file in files))
    for error in faults.values():
        if not isinstance(error, NotInStore):
            raise error
    if faults:
        what = f"blobs of {brief_names(file.path for file in files if file.digest in faults)}"
        remedy = "push the directory again"
        raise NotInStore(what=what, where="the store", remedy=remedy, refused=(f"{what} are missing",))
