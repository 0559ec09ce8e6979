"""Files of another tool's directory on their way out of the store: staged, verified, then given their names.

Invariants: nothing gets its name before every file is verified, changed where it must name another path,
and flushed; staging lies beside the directory, on the same file system, because the directory is the tool's.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cache_store.backends.backend import BlobBackend
from cache_store.backends.durability import choose_flush, flush_all
from cache_store.fetching.copying import BlobSource, copy_blob
from cache_store.node.private_files import (
    discard_tree,
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from cache_store.parallel import each
from cache_store.records.directory_listing import ListedFile
from cache_store.sync.relocate import Relocation

_NUM_THREADS = 8
_STAGING = ".tmp-"


def beside(root: Path) -> Path:
    """Where lock and staging lie: on the same file system, but not in the directory, which is the tool's."""
    return root.parent / f".{root.name}.warmrank"


def lay_out(backend: BlobBackend, files: Sequence[ListedFile], root: Path, moved: Relocation) -> int:
    """Copy files into ``root``, verified and made to name it where they must; none that is there is replaced.

    Returns:
        How many came to be.

    Raises:
        NotInStore, Corrupt, StoreUnavailable: as `copy_blob`.
        UnusableCache: the directory cannot be written.
    """
    if not files:
        return 0
    with _staging(beside(root)) as staging:
        each(lambda file: _stage(backend, file, staging, moved), files, num_threads=_NUM_THREADS)
        with os_errors_are_unusable("directory", root):
            flush_all(_everything(staging), root=staging, flush=choose_flush(staging))
            return _place_all(staging, files, root)


def _place_all(staging: Path, files: Sequence[ListedFile], root: Path) -> int:
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
def _staging(directory: Path) -> Iterator[Path]:
    sweep_debris(directory, _STAGING)
    path = directory / f"{_STAGING}{temporary_name()}"
    with os_errors_are_unusable("directory", path):
        path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        discard_tree(path)
