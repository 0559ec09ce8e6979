"""Where Inductor compiles: the same path in every process, because a library holds the path it was made at.

Layout: ``<root>/<digest of what is compiled>/`` for one compile, with a lock beside it, and
``<root>/inductor`` for precompiled headers.

Invariants: the root belongs to the running user and nobody else can write to it, or it is not used: then a
private directory serves, and the bytes differ from those of other processes, which a warning says. Of
processes that compile the same thing one works at a time.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from os import geteuid
from pathlib import Path

from filelock import FileLock

_log = logging.getLogger("torchair")
ROOT = Path("/tmp/warmrank-aoti")  # noqa: S108 - owner and mode are checked; TMPDIR would differ between processes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilePlace:
    """Directories of one compile: for what is made, and for what compiles share."""

    directory: Path
    cache: Path


@contextlib.contextmanager
def compile_place(digest: str, root: Path | None = None) -> Iterator[CompilePlace]:
    """An empty directory for the compile of what has this digest, held alone until the end."""
    root = ROOT if root is None else root
    fault = _fault(root)
    if fault:
        _log.warning(
            "%s cannot be used (%s); kernels are compiled in a private directory, so their bytes differ from "
            "those of other processes. Remove it, or give it to this user with mode 0700.",
            root,
            fault,
        )
        with (
            tempfile.TemporaryDirectory(prefix="warmrank-aoti-") as private,
            _made(Path(private), digest) as place,
        ):
            yield place
        return
    # The lock is the kernel's: a holder that died is no holder.
    with FileLock(root / f"{digest}.lock", mode=0o600, fallback_to_soft=False), _made(root, digest) as place:
        yield place


@contextlib.contextmanager
def _made(root: Path, digest: str) -> Iterator[CompilePlace]:
    directory, cache = root / digest, root / "inductor"
    shutil.rmtree(directory, ignore_errors=True)  # of a process that was killed
    directory.mkdir(mode=0o700)
    cache.mkdir(mode=0o700, exist_ok=True)
    try:
        yield CompilePlace(directory=directory, cache=cache)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _fault(root: Path) -> str:
    """Why the root cannot be used; made if absent."""
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(status.st_mode):
        return "it is no directory"
    if status.st_uid != geteuid():
        return f"it belongs to uid {status.st_uid}"
    if stat.S_IMODE(status.st_mode) != 0o700:
        return f"its mode is {stat.S_IMODE(status.st_mode):04o}"
    return ""
