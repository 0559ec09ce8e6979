"""The private directory that TorchAir works in: mode 0700, in the machine's directory for temporary files.

It ends with the compile, or with the loaded graph, or with its process. What a killed process left
is removed a day later by whoever makes the next one (`cache_store.node.private_files.sweep_debris`).
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.private_files import DIRECTORY_MODE, discard_tree, sweep_debris, temporary_name

_PREFIX = "warmrank-torchair-"


@contextlib.contextmanager
def private_directory(*, kept: bool = False) -> Iterator[Path]:
    """A new directory that only this user can enter; it is removed at the end.

    Args:
        kept: leave it to the caller to remove it, unless an error leaves this block.

    Raises:
        UnusableCache: there is no directory for temporary files, or no space in it.
    """
    with _clear_errors():
        root = Path(tempfile.gettempdir())
        _sweep_once(root)
        directory = root / f"{_PREFIX}{temporary_name()}"
        directory.mkdir(mode=DIRECTORY_MODE)
    is_finished = False
    try:
        yield directory
        is_finished = True
    finally:
        if not (kept and is_finished):
            discard_tree(directory)


@contextlib.contextmanager
def written_privately(directory: Path) -> Iterator[None]:
    """Around what writes into a private directory and reads it again.

    Raises:
        UnusableCache: it cannot be written; says why and what to do.
    """
    with _clear_errors(directory):
        yield


@contextlib.contextmanager
def _clear_errors(directory: Path | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnusableCache(
            what="directory for TorchAir's files",
            where=str(directory or error.filename or "TMPDIR"),
            expected="writable, and space left on its disk",
            actual=error.strerror or str(error),
            remedy="free some space there, or set TMPDIR to another directory of this user's",
        ) from error


@functools.cache
def _sweep_once(root: Path) -> None:
    sweep_debris(root, prefix=_PREFIX)
