"""Files of another tool's directory on their way out of the store: staged, verified, then given their names.

Nothing gets its name before every file is verified, changed where it must name another path, and flushed.
Staging lies beside the directory. A file that is there with other bytes stops all, unless it is to be
replaced, or was cut short. The directory bears the marks of those who vouch for the copies, as a cache
directory does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warmrank.cache_store.backends.durability import choose_flush, flush_all
from warmrank.cache_store.cache_dir.marks import permit_copies
from warmrank.cache_store.cache_dir.private_files import (
    DIRECTORY_MODE,
    date_back,
    discard_tree,
    make_directories_below,
    open_owned,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.digests import CHUNK_BYTES
from warmrank.cache_store.errors import Conflict, UnusableCache
from warmrank.cache_store.fetch.blobs import Blobs
from warmrank.cache_store.parallel import each, each_short, is_short
from warmrank.cache_store.records.directory_listing import ListedFile
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.sync.tools import Relocation, beside

_NUM_THREADS = 8
_STAGING = ".tmp-"
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What is to be laid out, and by whose word.

    Attributes:
        documents: the store's.
        signer_id: id of the key that signed the listing; empty where nobody did.
        files: the files that the directory lacks, or has otherwise.
        there: paths of the latter.
        moved: what of them must name the new path.
        replace: those that are there otherwise are replaced.
        stale: paths of files of an earlier pull that go before these come.
    """

    documents: Documents
    signer_id: str
    files: Sequence[ListedFile]
    there: Collection[str]
    moved: Relocation
    replace: bool
    stale: Collection[str]

    def mark(self, directory: Path) -> Blobs:
        """The blobs, which may be copied below a directory from now on."""
        signers = [self.signer_id] if self.signer_id else []
        permit = permit_copies(directory, self.documents.trust.policy, signers)
        return Blobs(backend=self.documents.backend, permit=permit, is_flushed=True)


@dataclass(slots=True)
class LaidOut:
    """Paths by what became of them; those that were equal after all are in neither."""

    new: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


def lay_out(copies: Copies, root: Path) -> LaidOut:
    """Copy files into ``root``, verified and made to name it where they must.

    Raises:
        NotInStore, Corrupt, StoreUnavailable: as `copy_blob`.
        Conflict: files are there with other bytes; nothing was laid out.
        UnusableCache: the directory cannot be written.
    """
    laid = LaidOut()
    if not copies.files:
        _remove(copies.stale, root)
        return laid
    with _staging(beside(root)) as staging:
        blobs = copies.mark(staging)
        directories = _directories(copies.files)
        for directory in directories:
            with os_errors_are_unusable("directory", staging / directory):
                (staging / directory).mkdir(mode=DIRECTORY_MODE)
        size_bytes = sum(file.size_bytes for file in copies.files)
        run = each_short if is_short(len(copies.files), size_bytes) else each
        run(lambda file: _stage(blobs, file, staging, copies.moved), copies.files, num_threads=_NUM_THREADS)
        with os_errors_are_unusable("directory", root):
            _choose(copies, staging, root, laid)
            if laid.new or laid.replaced:
                _flush(copies.files, directories, staging)
            _remove(copies.stale, root)
            if laid.new or laid.replaced:
                _place_all(copies, staging, root, laid)
    return laid


def refuse_others(paths: Sequence[str], root: Path) -> None:
    """Refuse to lay out beside files that are there with other bytes.

    Raises:
        Conflict: there are some; names the first.
    """
    if not paths:
        return
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    raise Conflict(
        what="directory",
        where=str(root),
        expected="each file absent, or as it was pushed: files of two versions do not go together",
        actual=f"other bytes in {', '.join(sorted(paths)[:_SHOWN])}{more}; nothing was changed",
        remedy="pull with --replace to have them replaced, or pull into an empty directory",
    )


def refuse_obstacles(files: Sequence[ListedFile], stale: Collection[str], root: Path) -> None:
    """Refuse to lay out where a file is to be a directory, or the other way round, and does not go as stale.

    Raises:
        Conflict: it is so; names the first.
    """
    gone = {root / path for path in stale}
    kinds = {**dict.fromkeys(_directories(files), "directory"), **{file.path: "file" for file in files}}
    for path, kind in kinds.items():
        with os_errors_are_unusable("file", root / path):
            try:
                mode = (root / path).lstat().st_mode
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
    """Whether this is a directory that `_remove` takes away, with all in it."""
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


def _choose(copies: Copies, staging: Path, root: Path, laid: LaidOut) -> None:
    others = []
    for file in copies.files:
        if (
            file.path not in copies.there
            or (kind := _compare(root / file.path, staging / file.path)) == "cut"
        ):
            laid.new.append(file.path)
        elif kind == "other":
            others.append(file.path)
    if not copies.replace:
        refuse_others(others, root)
    laid.replaced += others


def _compare(there: Path, staged: Path) -> str:
    """Bytes that are there, beside those that should be: ``equal``, ``cut`` short, or ``other``."""
    try:
        with open_owned(there) as one, staged.open("rb") as two:
            while chunk := one.read(CHUNK_BYTES):
                if two.read(len(chunk)) != chunk:
                    return "other"
            return "cut" if two.read(1) else "equal"
    except (UnusableCache, OSError):  # no regular file, such as a link, or one that cannot be read
        return "other"


def _place_all(copies: Copies, staging: Path, root: Path, laid: LaidOut) -> None:
    if not copies.there:
        try:
            staging.rename(root)  # replaces an empty directory
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            flush_all([root.parent], root=root.parent, flush="fsync")
            return
    copies.mark(root)
    for path in (*laid.new, *laid.replaced):
        make_directories_below(root, (root / path).parent)
    laid.new = [path for path in laid.new if _place(staging / path, root / path, path in copies.there)]
    for path in laid.replaced:
        (staging / path).replace(root / path)
    changed = {(root / path).parent for path in (*laid.new, *laid.replaced)}
    flush_all({root, *changed}, root=root, flush=choose_flush(root))


def _place(staged: Path, target: Path, is_cut: bool) -> bool:
    if is_cut:
        staged.replace(target)
        return True
    try:
        os.link(staged, target)  # a link does not replace; the staged name goes with its directory
    except FileExistsError:
        return False
    return True


def _stage(blobs: Blobs, file: ListedFile, staging: Path, moved: Relocation) -> None:
    path = staging / file.path
    blobs.copy(file.digest, path, _uncounted)
    with os_errors_are_unusable("file", path):
        if file.path in moved.paths:
            path.write_bytes(moved.apply(path.read_bytes()))
        if file.executable:
            path.chmod(0o700)
        date_back(path)


def _uncounted(num_bytes: int) -> None:
    """Nobody watches the progress of a pull."""


def _directories(files: Sequence[ListedFile]) -> list[str]:
    """Every directory that the files lie in, each after the one above it."""
    found: set[str] = set()
    for file in files:
        path = file.path.rpartition("/")[0]
        while path and path not in found:
            found.add(path)
            path = path.rpartition("/")[0]
    return sorted(found)


def _flush(files: Sequence[ListedFile], directories: Sequence[str], staging: Path) -> None:
    inside = (f"{staging}/{path}" for path in (*directories, *(file.path for file in files)))
    flush_all([str(staging), *inside], root=staging, flush=choose_flush(staging))


@contextlib.contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    sweep_debris(directory, _STAGING)
    path = directory / f"{_STAGING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        discard_tree(path)
