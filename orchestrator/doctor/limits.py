"""Checks on what the system allows: open files, memory, CPUs, threads, locale. Pure functions.

Every threshold is a constant with its reason; none of them is exact science, so what is below one is a
warning, but for what cannot work at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from warmrank.orchestrator.doctor.findings import Finding, ok
from warmrank.orchestrator.text import count_text, size_text

FEWEST_FILES = 4096
"""Ray warns below it (ray/_private/worker.py, 2.60): its daemons hold sockets to every worker."""

FILES_PER_RANK = 256
"""Roughly what the processes of one rank hold open: libraries, logs, sockets, Ray's channels."""

FEWEST_PROCESSES = 4096
"""Threads count: each Ray worker starts some tens of them, and torch one for each CPU."""

SMALLEST_SHM_BYTES = 256 * 2**20
"""128 MiB for the object store of a Ray of a launch's own, and some for collectives; Docker gives 64 MiB."""

SMALLEST_MEMLOCK_BYTES = 64 * 2**20
"""Network cards that read memory by themselves (RoCE, InfiniBand) need it pinned; KiB are too little."""

MEMORY_PER_RANK_BYTES = 2 * 2**30
"""A process with torch imported, and a little model; a rank with a large model needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the system allows on a node.

    Attributes:
        device: device kind that the node is checked for.
        num_files: soft limit of open files, ``ulimit -n``; infinity for none.
        num_files_hard: the hard one, to which this user may raise it.
        num_processes: ``ulimit -u``.
        locked_bytes: ``ulimit -l``.
        shm_bytes: size of ``/dev/shm``; 0 where there is none.
        shm_free_bytes: what is free of it.
        memory_bytes: what this process may use: the machine's memory, or its control group's limit.
        num_cpus: CPUs that it may use, by affinity and quota.
        num_ranks: ranks that will run here; 0 where that is not known.
        cpus_per_rank: ``ray.num_cpus_per_rank`` of the config.
        omp_num_threads: ``OMP_NUM_THREADS`` of the ranks, as the config has it; 0 without a config.
        ray_cpus: ``ray.num_cpus`` of a config whose Ray is a local one; 0 where Ray counts for itself.
        is_local: the config's Ray will be one of this machine.
        encoding: of the file system's names.
        umask: of this process.
    """

    device: str
    num_files: float
    num_files_hard: float
    num_processes: float
    locked_bytes: float
    shm_bytes: int
    shm_free_bytes: int
    memory_bytes: int
    num_cpus: float
    num_ranks: int
    cpus_per_rank: float
    omp_num_threads: int
    ray_cpus: int
    is_local: bool
    encoding: str
    umask: int


def check(facts: Limits) -> Iterator[Finding]:
    """All findings on limits and settings of the process."""
    yield _files(facts)
    yield _processes(facts)
    if facts.device != "cpu":
        yield _locked(facts)
    yield _shm(facts)
    yield _memory(facts)
    yield from _cpus(facts)
    yield from _threads(facts)
    yield _encoding(facts)
    yield _umask(facts)


def _files(facts: Limits) -> Finding:
    wanted = max(FEWEST_FILES, FILES_PER_RANK * facts.num_ranks)
    if facts.num_files_hard >= wanted:  # Ray raises the soft limit by itself
        shown = f"{_count(facts.num_files)} open files, and up to {_count(facts.num_files_hard)}"
        return ok("limits.files", shown)
    return Finding(
        check="limits.files",
        level="warning",
        what="few open files are allowed",
        expected=f"{wanted} or more",
        actual=f"{_count(facts.num_files)}, at most {_count(facts.num_files_hard)}",
        remedy="raise the hard limit as root: /etc/security/limits.conf, LimitNOFILE of the service that "
        "starts Ray, or --ulimit nofile=65536:65536 of the container",
    )


def _processes(facts: Limits) -> Finding:
    if facts.num_processes >= FEWEST_PROCESSES:
        return ok("limits.processes", f"{_count(facts.num_processes)} processes and threads")
    return Finding(
        check="limits.processes",
        level="warning",
        what="few processes and threads are allowed",
        expected=f"{FEWEST_PROCESSES} or more",
        actual=_count(facts.num_processes),
        remedy="ulimit -u 65536, or --pids-limit of the container",
    )


def _locked(facts: Limits) -> Finding:
    if facts.locked_bytes >= SMALLEST_MEMLOCK_BYTES:
        return ok("limits.locked_memory", f"{_size(facts.locked_bytes)} of locked memory")
    return Finding(
        check="limits.locked_memory",
        level="warning",
        what="little memory may be locked, which collectives between nodes need for RDMA",
        expected="unlimited",
        actual=_size(facts.locked_bytes),
        remedy="ulimit -l unlimited before `ray start`, or --ulimit memlock=-1 of the container",
    )


def _shm(facts: Limits) -> Finding:
    there = f"shared memory: {size_text(facts.shm_bytes)}, {size_text(facts.shm_free_bytes)} free"
    if facts.shm_free_bytes >= SMALLEST_SHM_BYTES:
        return ok("limits.shared_memory", there)
    return Finding(
        check="limits.shared_memory",
        level="warning",
        what="little shared memory: Ray then keeps its objects on disk, and collectives may fail",
        expected=f"{size_text(SMALLEST_SHM_BYTES)} or more free",
        actual=there,
        remedy="--shm-size=8g of the container, or in Kubernetes an emptyDir of medium Memory at /dev/shm; "
        "files that dead processes left there can be removed",
    )


def _memory(facts: Limits) -> Finding:
    wanted = MEMORY_PER_RANK_BYTES * max(1, facts.num_ranks)
    if facts.memory_bytes >= wanted:
        return ok(
            "limits.memory",
            f"{size_text(facts.memory_bytes)} of memory for this process and its control group",
        )
    return Finding(
        check="limits.memory",
        level="warning",
        what="little memory for so many ranks",
        expected=f"{size_text(MEMORY_PER_RANK_BYTES)} for each of {max(1, facts.num_ranks)}, and the model",
        actual=size_text(facts.memory_bytes),
        remedy="fewer ranks on this node, or a larger memory limit of the container",
    )


def _cpus(facts: Limits) -> Iterator[Finding]:
    usable = f"{facts.num_cpus:g} CPUs can be used"
    if not (facts.num_ranks and facts.is_local):
        yield ok("limits.cpus", usable)
        return
    wanted, believed = facts.num_ranks * facts.cpus_per_rank, facts.ray_cpus or math.floor(facts.num_cpus)
    if believed < wanted:
        yield Finding(
            check="limits.cpus",
            level="error",
            what="the local Ray of a launch has fewer CPUs than its ranks ask for, so it does not start",
            expected=f"{count_text(facts.num_ranks, 'rank')} x {facts.cpus_per_rank:g} = {wanted:g} CPUs",
            actual=f"{believed:g}" + (" (ray.num_cpus)" if facts.ray_cpus else ""),
            remedy="lower ray.num_cpus_per_rank (fractions are allowed) or ranks, or raise ray.num_cpus",
        )
        return
    yield ok("limits.cpus", f"{usable}; the ranks ask Ray for {wanted:g} of {believed:g}")


def _threads(facts: Limits) -> Iterator[Finding]:
    if not (facts.num_ranks and facts.omp_num_threads):
        return
    wanted = facts.num_ranks * facts.omp_num_threads
    if wanted <= max(1.0, facts.num_cpus):
        yield ok("limits.threads", f"{count_text(wanted, 'thread')} of all ranks on {facts.num_cpus:g} CPUs")
        return
    ranks = count_text(facts.num_ranks, "rank")
    yield Finding(
        check="limits.threads",
        level="note",
        what="the ranks' threads are more than the CPUs, so they wait for each other",
        expected=f"at most {facts.num_cpus:g} threads",
        actual=f"{ranks} x ray.omp_num_threads {facts.omp_num_threads} = {wanted}",
        remedy="lower ray.omp_num_threads; results stay the same",
    )


def _encoding(facts: Limits) -> Finding:
    if facts.encoding.lower().replace("-", "") == "utf8":
        return ok("limits.locale", f"names of files are {facts.encoding}")
    return Finding(
        check="limits.locale",
        level="warning",
        what="names of files are not UTF-8 here, so names with other letters fail",
        expected="utf-8",
        actual=facts.encoding,
        remedy="export LC_ALL=C.UTF-8",
    )


def _umask(facts: Limits) -> Finding:
    shown = f"umask {facts.umask:04o}"
    if facts.umask & 0o700 == 0:
        return ok("limits.umask", shown)
    return Finding(
        check="limits.umask",
        level="error",
        what="the umask takes rights from the user itself, so it could not read its own files",
        expected="022, 027 or 077",
        actual=shown,
        remedy="umask 022",
    )


def _count(number: float) -> str:
    return "unlimited" if math.isinf(number) else f"{number:g}" if number < 10**6 else f"{int(number)}"


def _size(number: float) -> str:
    return "unlimited" if math.isinf(number) else size_text(int(number))
