"""Node artifacts between the private directory in which an engine's tools work and a node cache.

TorchAir has static kernels and GE's graphs beside ``compiled_module``, in a directory that here lasts as long
as the process. After a compile they are handed over to the node's own directory (`worker.node_caches`), where
a launch collects them; before a load they are brought in from there, so that TorchAir finds them where it
would have left them.

Invariants: what belongs to one artifact has a prefix of its own, so nothing is ever offered to another, which
matters because neither TorchAir nor GE look at what they find; files are whole, private (packages with the
right to be run as well, which TorchAir does, where this package does not), and share no inode. The first file
of a name stays. What fails is logged: the tools compile again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cache_store.digests import copy_and_digest
from cache_store.errors import UnusableCache
from cache_store.node.private_files import (
    create_private,
    make_private_directories,
    open_owned,
    os_errors_are_unusable,
    temporary_name,
)
from cache_store.paths import path_fault

_log = logging.getLogger(__name__)

PACKAGES: tuple[str, ...] = (
    "aclnn_static_shape_kernel_outputs/ts*_outputs/*.run",
    "static_kernel_compile_outputs/ts*_outputs/*.run",
)
"""Where torchair and npugraph_ex have packages of static kernels, beside ``compiled_module``."""
GRAPHS: tuple[str, ...] = ("*.om", "*.idx", "*.rdcpkt", "weight/*")
"""Where GE has its graphs there."""
_RUNNABLE = 0o700


def hand_over(private: Path, node_cache: Path, prefix: str, patterns: Iterable[str]) -> tuple[str, ...]:
    """Copy what an engine's tools made into a node cache.

    Args:
        private: the directory of ``compiled_module``.
        node_cache: the node cache's directory.
        prefix: posix path of the artifact there.
        patterns: which files.

    Returns:
        Paths below ``private`` of those that are there now.
    """
    found = _found(private, patterns)
    return _copied(found, private, node_cache / _checked(prefix))


def bring_in(node_cache: Path, prefix: str, private: Path, patterns: Iterable[str]) -> tuple[str, ...]:
    """Copy what was handed over for an artifact, on this node or another, to where its tools look for it.

    Of packages only those of the newest directory: TorchAir installs those of the first one that it comes
    upon, and their names begin with the time.

    Args:
        node_cache: the node cache's directory.
        prefix: posix path of the artifact there.
        private: the directory of ``compiled_module``.
        patterns: which files.

    Returns:
        Their paths below ``private``.
    """
    source = node_cache / _checked(prefix)
    found = _found(source, patterns)
    packages = [path for path in found if path.suffix == ".run"]
    newest = max((path.parent.name for path in packages), default="")
    wanted = [path for path in found if path.suffix != ".run" or path.parent.name == newest]
    return _copied(wanted, source, private)


def _checked(prefix: str) -> str:
    if fault := path_fault(prefix):
        raise ValueError(f"prefix {prefix!r} {fault}")
    return prefix


def _found(root: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})


def _copied(files: Sequence[Path], root: Path, target: Path) -> tuple[str, ...]:
    done: list[str] = []
    for path in files:
        relative = path.relative_to(root).as_posix()
        try:
            _copy(path, target / relative)
        except UnusableCache as error:
            _log.warning("Not taken along, so it is compiled again: %s", error)
        else:
            done.append(relative)
    return tuple(done)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, unless one of that name is there.

    Raises:
        UnusableCache: another user could have written it, or one of the two cannot be read or written.
    """
    temporary = target.with_name(f".warmrank-{temporary_name()}")
    with os_errors_are_unusable("file", target):
        if target.exists():
            return
        make_private_directories(target.parent)
        try:
            with open_owned(source) as reader, create_private(temporary) as writer:
                copy_and_digest(reader, writer)
                if source.suffix == ".run":
                    os.fchmod(writer.fileno(), _RUNNABLE)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
