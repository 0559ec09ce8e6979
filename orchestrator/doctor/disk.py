"""Checks on the directory that artifacts are laid out in: owner, rights, room, what its file system can do.

Pure functions. What needs what: every artifact is a private file (0600) that this user owns, or it is not
loaded; libraries of mode max-autotune and static kernels are mapped for execution, so ``noexec`` stops them;
a network file system works, but is what the store is for, and costs every load; reflinks make the copies of a
node's ranks cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warmrank.cache_store.backends.durability import LOCAL_TYPES
from warmrank.orchestrator.doctor.findings import Finding, ok, unknown
from warmrank.orchestrator.text import size_text

LEAST_FREE_BYTES = 2**30
"""Where nobody knows what the launch needs."""

LEAST_FREE_INODES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What is known of a cache directory.

    Attributes:
        path: the directory.
        exists: it is there; where not, all else is said of ``looked_at``.
        looked_at: the directory, or the nearest one above it that is there.
        problem: why it cannot be used, in the words of the operating system; empty if it can.
        uid: of its owner.
        own_uid: of this process.
        mode: its permissions.
        file_system: type, as in ``/proc/mounts``; empty where it is not known.
        noexec: nothing on it may be executed.
        free_bytes: what this user may still write.
        free_inodes: files that may still be made; -1 where the file system has no such limit.
        needed_bytes: size of this config's newest launch in the store; 0 where none is known.
        scratch_problem: what went wrong with a file made for a try; empty if nothing did, or it was not
            tried.
        keeps_modes: a file made with 0600 has 0600 and this owner; None where it was not tried.
        reflinks: copies that share their blocks can be made; None where it was not tried.
    """

    path: str
    exists: bool
    looked_at: str
    problem: str
    uid: int
    own_uid: int
    mode: int
    file_system: str
    noexec: bool
    free_bytes: int
    free_inodes: int
    needed_bytes: int
    scratch_problem: str
    keeps_modes: bool | None
    reflinks: bool | None


def check(facts: Disk) -> Iterator[Finding]:
    """All findings on the cache directory."""
    yield _directory(facts)
    yield _file_system(facts)
    yield _free(facts)
    yield _inodes(facts)
    yield _execution(facts)
    yield from _scratch(facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCacheDirectory:
    """Where a node cache of the config lies; ``problem`` is why it cannot be written, empty if it can."""

    name: str
    path: str
    problem: str


def check_node_caches(directories: Sequence[NodeCacheDirectory]) -> Iterator[Finding]:
    """Whether artifacts of the node, such as static kernels, can be brought to where its tools look."""
    closed = [item for item in directories if item.problem]
    if directories and not closed:
        yield ok("disk.node_caches", ", ".join(f"{item.name} in {item.path}" for item in directories))
    for item in closed:
        yield Finding(
            check="disk.node_caches",
            level="warning",
            what=f"node cache {item.name} cannot be written, so nothing from the store comes there",
            expected=f"{item.path}: a directory of this user, or one that can be made",
            actual=item.problem,
            remedy=f"mend that, or name another as node_caches.{item.name}.path; null leaves it out",
        )


def _directory(facts: Disk) -> Finding:
    fault, remedy = _directory_fault(facts)
    if not fault:
        made = "is there, and private" if facts.exists else "is not there yet; a launch makes it"
        return ok("disk.cache_dir", f"{facts.path} {made}")
    return Finding(
        check="disk.cache_dir",
        level="error",
        what=f"{facts.path} cannot be the cache directory",
        expected="a directory of this user, or one that can be made, which nobody else can write",
        actual=fault,
        remedy=remedy,
    )


def _directory_fault(facts: Disk) -> tuple[str, str]:
    """What is wrong, and what to do; empty if nothing is."""
    if facts.problem:
        return f"{facts.looked_at}: {facts.problem}", "mend that, or name another cache_dir"
    if facts.exists and facts.uid != facts.own_uid:
        return f"it belongs to uid {facts.uid}, not {facts.own_uid}", "name a cache_dir of your own"
    if facts.exists and facts.mode & 0o022:
        return f"others can write it (mode {facts.mode:04o})", f"chmod 700 {facts.path}"
    return "", ""


def _file_system(facts: Disk) -> Finding:
    kind = facts.file_system
    if kind in LOCAL_TYPES:
        return ok("disk.file_system", f"{kind}, a local file system")
    return Finding(
        check="disk.file_system",
        level="warning",
        what=f"the cache directory lies on {kind or 'an unknown file system'}, which may be shared or slow",
        expected=f"a local disk ({', '.join(sorted(LOCAL_TYPES))})",
        actual=kind or "not known",
        remedy="name a cache_dir on each node's own disk; what nodes share is the store",
    )


def _free(facts: Disk) -> Finding:
    needed = max(LEAST_FREE_BYTES, 2 * facts.needed_bytes)
    why = (
        f"twice the {size_text(facts.needed_bytes)} of this config's newest launch in the store"
        if needed > LEAST_FREE_BYTES
        else "as a minimum"
    )
    if facts.free_bytes >= needed:
        return ok("disk.free", f"{size_text(facts.free_bytes)} free")
    return Finding(
        check="disk.free",
        level="error" if facts.free_bytes < facts.needed_bytes or not facts.free_bytes else "warning",
        what="little room is left for the cache directory",
        expected=f"{size_text(needed)}, {why}",
        actual=f"{size_text(facts.free_bytes)} at {facts.looked_at}",
        remedy="free some (old cache directories can be removed whole), or name another cache_dir",
    )


def _inodes(facts: Disk) -> Finding:
    if facts.free_inodes < 0 or facts.free_inodes >= LEAST_FREE_INODES:
        shown = "no limit of files" if facts.free_inodes < 0 else f"{facts.free_inodes} files can be made"
        return ok("disk.inodes", shown)
    return Finding(
        check="disk.inodes",
        level="warning" if facts.free_inodes else "error",
        what="few files can still be made, however much room is left",
        expected=f"{LEAST_FREE_INODES} free inodes",
        actual=str(facts.free_inodes),
        remedy="remove small files (df -i shows the file system), or name another cache_dir",
    )


def _execution(facts: Disk) -> Finding:
    if not facts.noexec:
        return ok("disk.execution", "compiled libraries can be mapped")
    return Finding(
        check="disk.execution",
        level="warning",
        what="the file system is mounted noexec, so compiled libraries of mode max-autotune do not load",
        expected="no noexec",
        actual="noexec",
        remedy="mount it without noexec, or name another cache_dir; mode reduce-overhead loads no libraries",
    )


def _scratch(facts: Disk) -> Iterator[Finding]:
    if not facts.exists:
        yield unknown("disk.private_files", "no file is made for a try where the directory is not there yet")
        return
    if facts.scratch_problem or facts.keeps_modes is False:
        yield Finding(
            check="disk.private_files",
            level="error",
            what="a private file cannot be made in the cache directory, and only private files are loaded",
            expected="a file of this user with mode 0600, flushed",
            actual=facts.scratch_problem or "another owner or mode than it was made with",
            remedy="name a cache_dir on a disk that keeps owners and modes (no vfat, no SMB, no squashed "
            "NFS)",
        )
    elif facts.keeps_modes:
        yield ok("disk.private_files", "a file made with mode 0600 stays private")
    if facts.reflinks is not None:
        has = "it can share" if facts.reflinks else "it cannot share"
        yield ok(
            "disk.reflinks", f"{has} blocks between copies (reflinks): that is speed and room, nothing else"
        )
