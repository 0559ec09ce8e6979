"""What an engine's tools made for one artifact, between their private directory and a node cache.

TorchAir has static kernels and GE's graphs beside ``compiled_module``, in a directory that here lasts as long
as the process. What is there is handed over, as one *set*, to the node's own directory; from there a launch
collects it (`worker.node_collecting`), and a later load brings it in, so that TorchAir finds it where it
would have left it. Layout::

    <node cache>/<artifact>/<conditions>/<set>/<path as in the private directory>

Invariants: what belongs to one artifact under the same conditions has a prefix of its own, so nothing is ever
offered to another, which matters because neither TorchAir nor GE look at what they find. The name of a set is
the digest of its paths and bytes: what is torn, incomplete or added to is brought in by nobody. A set appears
whole and takes the place of the one before, because an index of GE fits its own graphs only. Files are
private (packages with the right to be run as well, which TorchAir does, where this package does not), and
share no inode. What fails is logged: the tools compile again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.digests import Digest, copy_and_digest, digest_bytes
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.node_files import is_reserved
from warmrank.cache_store.node.private_files import (
    create_private,
    digest_owned,
    discard_tree,
    make_private_directories,
    open_owned,
    os_errors_are_unusable,
    sweep_debris,
    sync_directory,
    temporary_name,
)
from warmrank.cache_store.paths import path_fault

_log = logging.getLogger(__name__)

PACKAGES: tuple[str, ...] = (
    "aclnn_static_shape_kernel_outputs/ts*_outputs/*.run",
    "static_kernel_compile_outputs/ts*_outputs/*.run",
)
"""Where torchair and npugraph_ex have packages of static kernels, beside ``compiled_module``."""
GRAPHS: tuple[str, ...] = ("*.om", "*.idx", "*.rdcpkt", "weight/*")
"""Where GE has its graphs there."""
PREFIX_CHARS = 32
"""How much of an artifact's digest its prefix begins with."""
_RUNNABLE = 0o700
_TEMPORARY = ".warmrank-"
_NAME_CHARS = 32


def set_name(members: Mapping[str, Digest]) -> str:
    """What a set of files is called, given their paths within it."""
    lines = (f"{path}\0{found.sha256}\0{found.size_bytes}\n" for path, found in sorted(members.items()))
    return digest_bytes("".join(lines).encode()).sha256[:_NAME_CHARS]


def hand_over(private: Path, node_cache: Path, prefix: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """Copy what an engine's tools made into a node cache, in place of what was there for the artifact.

    Args:
        private: the directory of ``compiled_module``.
        node_cache: the node cache's directory.
        prefix: posix path of artifact and conditions there.
        patterns: which files.

    Returns:
        Paths below ``private`` of those that are there now: all or none.
    """
    target = node_cache / _checked(prefix)
    members = _found(private, patterns)
    if not members:
        return ()
    try:
        with os_errors_are_unusable("directory", target):
            kept = _hand_over(private, members, target, patterns)
            for other in target.iterdir():
                if other != kept and not other.name.startswith(_TEMPORARY):
                    discard_tree(other)
    except UnusableCache as error:
        _log.warning("Not kept for the next process, so it is compiled again: %s", error)
        return ()
    finally:
        sweep_debris(target, _TEMPORARY)
    return members


def bring_in(node_cache: Path, prefix: str, private: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """Copy what was handed over for an artifact, on this node or another, to where its tools look for it.

    Args:
        node_cache: the node cache's directory.
        prefix: posix path of artifact and conditions there.
        private: the directory of ``compiled_module``.
        patterns: which files.

    Returns:
        Their paths below ``private``: those of the newest set that is whole.
    """
    for kept in _sets(node_cache / _checked(prefix)):
        copied: dict[str, Digest] = {}
        try:
            for path in _found(kept, patterns):
                copied[path] = _copied(kept / path, private / path)
            why = "its files are not those that it was made of"
        except UnusableCache as error:
            why = str(error)
        if copied and set_name(copied) == kept.name:
            with contextlib.suppress(OSError):
                os.utime(kept)  # `drop_unused` goes by it
            return tuple(copied)
        for path in copied:
            (private / path).unlink(missing_ok=True)
        _log.warning("Not brought in, so it may be compiled again: %s: %s", kept, why)
    return ()


def drop_unused(node_cache: Path, *, age_s: float) -> None:
    """Remove what no process brought in or handed over for long: its artifact is gone, or nobody loads it."""
    for prefix in (path for path in node_cache.glob("*/*") if not path.parent.name.startswith(".")):
        with contextlib.suppress(OSError):
            times = [prefix.lstat().st_mtime, *(path.lstat().st_mtime for path in prefix.iterdir())]
            if time.time() - max(times) > age_s:
                discard_tree(prefix)
                _log.info("Removed %s, which was not used for long", prefix)
                prefix.parent.rmdir()


def _hand_over(private: Path, members: tuple[str, ...], target: Path, patterns: Sequence[str]) -> Path:
    name = set_name({path: digest_owned(private / path) for path in members})
    kept = target / name
    if _is_whole(kept, patterns):
        os.utime(kept)
        return kept
    staged = target / f"{_TEMPORARY}{temporary_name()}"
    make_private_directories(staged)
    try:
        if set_name({path: _copied(private / path, staged / path) for path in members}) != name:
            raise OSError(f"files of {private} were written while they were read")
        if kept.exists():
            discard_tree(kept)  # damaged
        staged.rename(kept)
        sync_directory(target)
    finally:
        discard_tree(staged)
    return kept


def _is_whole(kept: Path, patterns: Sequence[str]) -> bool:
    try:
        return set_name({path: digest_owned(kept / path) for path in _found(kept, patterns)}) == kept.name
    except (OSError, UnusableCache):
        return False


def _sets(prefix: Path) -> list[Path]:
    """The sets that are there, the newest first."""
    times: dict[Path, float] = {}
    with contextlib.suppress(OSError):
        for path in sorted(prefix.iterdir()):
            if not path.name.startswith("."):
                times[path] = path.lstat().st_mtime
    return sorted(times, key=times.__getitem__, reverse=True)


def _checked(prefix: str) -> str:
    if fault := path_fault(prefix):
        raise ValueError(f"prefix {prefix!r} {fault}")
    return prefix


def _found(root: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """Paths of a set below a directory.

    Of packages only those of the newest directory: TorchAir runs those of the first one that it comes upon,
    and their names begin with the time.
    """
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    relative = [path.relative_to(root).as_posix() for path in sorted(paths)]
    usual = [path for path in relative if not path_fault(path) and not any(map(is_reserved, path.split("/")))]
    newest = max((path.split("/")[-2] for path in usual if path.endswith(".run")), default="")
    return tuple(path for path in usual if not path.endswith(".run") or path.split("/")[-2] == newest)


def _copied(source: Path, target: Path) -> Digest:
    """Copy a file, whole and durable, unless one of that name is there.

    Raises:
        UnusableCache: another user could have written it, or one of the two cannot be read or written.
    """
    with os_errors_are_unusable("file", target):
        make_private_directories(target.parent)
        with open_owned(source) as reader, create_private(target) as writer:
            digest = copy_and_digest(reader, writer)
            if source.suffix == ".run":
                os.fchmod(writer.fileno(), _RUNNABLE)
            writer.flush()
            os.fsync(writer.fileno())
    return digest
