"""Pulling a directory of another tool: verified copies, laid out as the tool left them.

Nothing gets its name before every file is verified, changed where it must name another path, and flushed,
because other tools verify nothing; an absent or empty directory appears by one rename. Where files are there
with other bytes nothing is laid out, unless they are to be replaced or are cut short. What an earlier pull
put there and the listing no longer names goes only where files are replaced and nobody changed it. Files are
private to this user (0600, or 0700), and the directory bears the marks of those who vouch for them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.durability import choose_flush, flush_all
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.marks import admit, check_marks, permit_copies
from warmrank.cache_store.cache_dir.private_files import (
    DIRECTORY_MODE,
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
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.parallel import NUM_THREADS, each
from warmrank.cache_store.records.directory_listing import (
    ListedFile,
    StoredListing,
    listing_key,
    nearest_listing,
    newest_listing,
)
from warmrank.cache_store.records.documents import READERS, Documents
from warmrank.cache_store.sync.tools import Relocation, beside, is_ours, relocation, shortened, tool_named

logger = logging.getLogger(__name__)
_INDEX = "files"
_STAGING = ".tmp-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """Outcome of pulling one directory."""

    directory: str
    key: str  # of its listings
    pushed: str  # when the listing that was taken was made
    num_files: int  # in that listing
    num_new: int  # that the directory lacked, or had cut short
    num_replaced: int  # that it had with other bytes
    num_removed: int  # of an earlier pull
    num_kept: int  # that it had already, with the same bytes, which were not touched
    bytes_copied: int  # of the new and the replaced ones
    num_rewritten: int  # of them, those in which the directory's path was replaced
    problems: tuple[str, ...]  # listings that could not be used, and files of an earlier pull that stay


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan:
    """A listing to be restored, and where."""

    tool: str
    root: Path
    stored: StoredListing  # the newest that can be used
    moved: Relocation  # what of it must name the new path
    problems: tuple[str, ...]  # listings that could not be used

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
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - the tool sees this path, not the resolved one
    # After a miss the tool uses what is there.
    check_marks(root, documents.trust.policy, documents.trust.revoked)
    documents = replace(documents, problems=[])  # they stand in the report
    key = listing_key(tool, dict(components))
    try:
        stored = newest_listing(documents, key)
    except NotInStore as error:
        raise NotInStore(
            what=f"directory of {tool!r} with these components",
            where=f"key {key[:12]}",
            remedy="; ".join([nearest_listing(documents, tool, dict(components)), *documents.problems[:3]]),
        ) from error
    moved = relocation(tool_named(tool), stored.listing.files, old=stored.listing.root, new=str(root))
    return PullPlan(tool=tool, root=root, stored=stored, moved=moved, problems=tuple(documents.problems))


@contextlib.contextmanager
def pull_lock(root: Path) -> Iterator[None]:
    """Hold the lock of a directory to be pulled, which is made if absent; see `single_flight`."""
    root = root.absolute()
    ensure_cache_dir(root)
    with single_flight(beside(root), timeout_s=LOCK_TIMEOUT_S):
        yield


def pull(documents: Documents, plan: PullPlan, *, replaces: bool = False) -> PullReport:
    """Restore what was planned; the caller holds `pull_lock`.

    With ``replaces``, files that are there with other bytes are replaced, those of an earlier pull removed.

    Raises:
        NotInStore: blobs of it are missing.
        Conflict: files are there with other bytes, or stand where a directory should; nothing was changed.
        Corrupt: a blob is damaged, and now in quarantine; nothing was laid out.
    """
    root, trust, place = plan.root, documents.trust, beside(plan.root)
    admit(root, trust.policy, trust.revoked)
    ensure_cache_dir(place)
    # Our own names are none of the tool's: they would decide what may be done with the directory.
    files = [file for file in plan.stored.listing.files if not is_ours(file.path)]
    index = DigestIndex(root, _INDEX, at=place, opened=open_owned)
    laid_before = DigestIndex(root, f"pulled-{plan.key}", at=place, opened=open_owned)
    stale = _stale(laid_before, {file.path for file in files}, root, index)
    removed = [path for path, is_unchanged in stale.items() if replaces and is_unchanged]
    _refuse_obstacles(files, removed, root)
    wanted, there = _look(files, plan.moved, root, index, replaces=replaces)
    _check_complete(documents.backend, wanted)
    new: list[str] = []
    replaced: list[str] = []
    if wanted:
        copying = _Copying(documents=documents, plan=plan, files=wanted, there=there, stale=removed)
        sweep_debris(place, _STAGING)
        with staging_directory(place, _STAGING) as staging:
            new, replaced = copying.lay_out(staging, replaces=replaces)
    else:
        _remove(removed, root)
    come = {*new, *replaced}
    for file in wanted:
        if file.path in come and file.path not in plan.moved.paths:
            target = root / file.path
            index.remember_own(target, file.digest)
            laid_before.remember_own(target, file.digest)
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
        num_new=len(new),
        num_replaced=len(replaced),
        num_removed=len(removed),
        num_kept=len(files) - len(come),
        bytes_copied=sum(file.size_bytes for file in wanted if file.path in come),
        num_rewritten=len(plan.moved.paths & come),
        problems=(*plan.problems, *_staying(stale, removed)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """Files that the directory lacks, or has otherwise (``there``), on their way; ``stale`` ones go first."""

    documents: Documents
    plan: PullPlan
    files: Sequence[ListedFile]
    there: Collection[str]
    stale: Collection[str]

    def lay_out(self, staging: Path, *, replaces: bool) -> tuple[list[str], list[str]]:
        """Copy the files; return paths of new and of replaced ones, not of those equal after all."""
        root = self.plan.root
        blobs = self._mark(staging)
        directories = _directories(self.files)
        for directory in directories:
            with os_errors_are_unusable("directory", staging / directory):
                (staging / directory).mkdir(mode=DIRECTORY_MODE)
        size_bytes = sum(file.size_bytes for file in self.files)
        each(
            lambda file: self._stage(blobs, file, staging),
            self.files,
            num_threads=READERS,
            size_bytes=size_bytes,
        )
        with os_errors_are_unusable("directory", root):
            kinds = {file.path: self._kind(file.path, staging) for file in self.files}
            new = [path for path, kind in kinds.items() if kind == "new"]
            others = [path for path, kind in kinds.items() if kind == "other"]
            if not replaces:
                _refuse_others(others, root)
            if new or others:
                inside = (f"{staging}/{path}" for path in (*directories, *kinds))
                flush_all([str(staging), *inside], root=staging, flush=choose_flush(staging))
            _remove(self.stale, root)
            if new or others:
                new = self._place(staging, new, others)
        return new, others

    def _mark(self, directory: Path) -> Blobs:
        """The blobs, which may be copied below a directory from now on."""
        signers = [self.plan.stored.signer_id] if self.plan.stored.signer_id else []
        permit = permit_copies(directory, self.documents.trust.policy, signers)
        return Blobs(backend=self.documents.backend, permit=permit, is_flushed=True)

    def _stage(self, blobs: Blobs, file: ListedFile, staging: Path) -> None:
        path, moved = staging / file.path, self.plan.moved
        blobs.copy(file.digest, path)
        with os_errors_are_unusable("file", path):
            if file.path in moved.paths:
                path.write_bytes(moved.apply(path.read_bytes()))
            if file.executable:
                path.chmod(0o700)
            date_back(path)

    def _kind(self, path: str, staging: Path) -> str:
        """Compare what is there with what should be: ``new`` for nothing or less, ``equal``, ``other``."""
        if path not in self.there:
            return "new"
        try:
            with open_owned(self.plan.root / path) as one, (staging / path).open("rb") as two:
                while chunk := one.read(CHUNK_BYTES):
                    if two.read(len(chunk)) != chunk:
                        return "other"
                return "new" if two.read(1) else "equal"
        except (UnusableCache, OSError):  # no regular file, such as a link, or one that cannot be read
            return "other"

    def _place(self, staging: Path, new: list[str], replaced: list[str]) -> list[str]:
        """Give the staged files their names; return the new ones for which nobody was faster."""
        root = self.plan.root
        if not self.there:
            try:
                staging.rename(root)  # replaces an empty directory
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                flush_all([root.parent], root=root.parent, flush="fsync")
                return new
        self._mark(root)
        for directory in {os.path.dirname(path) for path in (*new, *replaced)}:  # noqa: PTH120 - thousands
            make_directories_below(root, root / directory)
        placed: list[str] = []
        for path in new:
            with contextlib.suppress(FileExistsError):
                if path in self.there:  # cut short
                    (staging / path).replace(root / path)
                else:  # a link does not replace; the staged name goes with its directory
                    os.link(staging / path, root / path)
                placed.append(path)
        for path in replaced:
            (staging / path).replace(root / path)
        changed = {os.path.dirname(f"{root}/{path}") for path in (*placed, *replaced)}  # noqa: PTH120
        flush_all({str(root), *changed}, root=root, flush=choose_flush(root))
        return placed


def _refuse_others(paths: Sequence[str], root: Path) -> None:
    """Refuse to lay out beside files that are there with other bytes."""
    if paths:
        raise Conflict(
            what="directory",
            where=str(root),
            expected="each file absent, or as it was pushed: files of two versions do not go together",
            actual=f"other bytes in {shortened(sorted(paths))}; nothing was changed",
            remedy="pull with --replace to have them replaced, or pull into an empty directory",
        )


def _refuse_obstacles(files: Sequence[ListedFile], stale: Collection[str], root: Path) -> None:
    """Refuse to lay out a directory where a file is that does not go as stale, or the other way round."""
    gone = {root / path for path in stale}
    kinds = {**dict.fromkeys(_directories(files), "directory"), **{file.path: "file" for file in files}}
    for path, kind in kinds.items():
        place = f"{root}/{path}"  # as text: there may be thousands, and nearly all are absent
        with os_errors_are_unusable("file", place):
            try:
                mode = os.lstat(place).st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            is_directory = stat.S_ISDIR(mode)
            # What is no directory where a file should be is compared with that.
            if is_directory == (kind == "directory") or not (is_directory or kind == "directory"):
                continue
            if _is_emptied(root / path, mode, gone):
                continue
        found = "directory" if is_directory else "link" if stat.S_ISLNK(mode) else "file"
        raise Conflict(
            what="directory",
            where=str(root),
            expected=f"{path} to be a {kind}, or absent",
            actual=f"a {found}; nothing was changed",
            remedy="remove it; --replace removes only what an earlier pull put there",
        )


def _is_emptied(path: Path, mode: int, gone: Collection[Path]) -> bool:
    """Return True for a directory that `_remove` takes away, with all in it."""
    if not stat.S_ISDIR(mode):
        return path in gone
    below = list(path.iterdir())
    return bool(below) and all(_is_emptied(entry, entry.lstat().st_mode, gone) for entry in below)


def _remove(paths: Collection[str], root: Path) -> None:
    """Remove files, and the directories that they leave empty."""
    with os_errors_are_unusable("directory", root):
        for path in sorted(paths):
            (root / path).unlink(missing_ok=True)
            for directory in Path(path).parents[:-1]:
                with contextlib.suppress(OSError):
                    (root / directory).rmdir()


def _directories(files: Sequence[ListedFile]) -> list[str]:
    """Every directory that the files lie in, each after the one above it."""
    found = {str(directory) for file in files for directory in Path(file.path).parents}
    return sorted(found - {"."})


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
            yield f"{shortened(staying)}: of an earlier pull, {why}"


def _look(
    files: list[ListedFile], moved: Relocation, root: Path, index: DigestIndex, *, replaces: bool
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
    if not replaces:
        _refuse_others(others, root)
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


def _check_complete(backend: BlobBackend, files: list[ListedFile]) -> None:
    faults = missing_blobs(backend, (file.digest for file in files))
    for error in faults.values():
        if not isinstance(error, NotInStore):
            raise error
    if faults:
        what = f"blobs of {shortened([file.path for file in files if file.digest in faults])}"
        raise NotInStore(what=what, where="the store", remedy="push the directory again")
