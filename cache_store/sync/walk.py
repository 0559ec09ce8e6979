"""Reading the directory of another tool: which files belong to it.

Invariants: links are not followed and not kept; what another user could have written is refused, because it
would be published under this user's signature; nothing is changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.node.private_files import check_owned, os_errors_are_unusable
from warmrank.cache_store.paths import path_fault
from warmrank.cache_store.sync.tools import is_left_out, is_ours, is_own_work


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file of a directory, by its path relative to it."""

    path: str
    executable: bool
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a directory holds.

    Attributes:
        files: its files, sorted by path.
        left_out: what is not taken, with the reason, sorted; locks and temporary files are not mentioned.
    """

    files: tuple[FoundFile, ...]
    left_out: tuple[str, ...]


def walk(root: Path) -> Found:
    """List a directory.

    Raises:
        UnusableCache: it is no directory, cannot be read, or another user could have written to it.
    """
    left_out: list[str] = []
    with os_errors_are_unusable("directory", root):
        check_owned(root, root.stat(), directory=True)
        files = sorted(_walk(root, "", left_out), key=lambda file: file.path)
    return Found(files=tuple(files), left_out=tuple(sorted(left_out)))


def _walk(root: Path, prefix: str, left_out: list[str]) -> Iterator[FoundFile]:
    with os.scandir(root / prefix) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{prefix}{entry.name}"
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_left_out(entry.name, directory=is_directory):
                continue
            if is_ours(path):
                if not is_own_work(entry.name, directory=is_directory):
                    left_out.append(f"{path}: warmrank keeps this name for itself")
            elif fault := path_fault(path):
                left_out.append(f"{path!r}: its name {fault}")
            elif is_directory:
                check_owned(root / path, entry.stat(follow_symlinks=False), directory=True)
                yield from _walk(root, f"{path}/", left_out)
            elif not entry.is_file(follow_symlinks=False):
                left_out.append(f"{path}: no regular file (a link, socket or device)")
            else:
                status = entry.stat(follow_symlinks=False)
                executable = bool(status.st_mode & stat.S_IXUSR)
                yield FoundFile(path=path, executable=executable, size_bytes=status.st_size)
