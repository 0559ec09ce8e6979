"""Looks at what the system allows this process: limits, memory, CPUs, shared memory. Input only.

What cannot be found out counts as not limited: control groups are read in versions 1 and 2, where they show.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.doctor.limits import Limits

_CGROUPS = Path("/sys/fs/cgroup")


def look_at_limits(device: str, config: Config | None, *, is_local: bool) -> Limits:
    """What the system allows; with ranks on this node only where the config's Ray will be a local one."""
    files, files_hard = _limits(resource.RLIMIT_NOFILE)
    shm_bytes, shm_free_bytes = _shm()
    return Limits(
        device=device,
        num_files=files,
        num_files_hard=files_hard,
        num_processes=_limits(resource.RLIMIT_NPROC)[0],
        locked_bytes=_limits(resource.RLIMIT_MEMLOCK)[0],
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        memory_bytes=_memory(),
        num_cpus=_cpus(),
        num_ranks=config.ranks if config and is_local else 0,
        cpus_per_rank=config.ray.num_cpus_per_rank if config else 1.0,
        omp_num_threads=config.ray.omp_num_threads if config else 0,
        ray_cpus=(config.ray.num_cpus or 0) if config and is_local else 0,
        is_local=is_local,
        encoding=sys.getfilesystemencoding(),
        umask=_umask(),
    )


def _limits(which: int) -> tuple[float, float]:
    """Soft and hard limit; infinity for none."""
    soft, hard = (
        float("inf") if value == resource.RLIM_INFINITY else float(value)
        for value in resource.getrlimit(which)
    )
    return soft, hard


def _shm() -> tuple[int, int]:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - a mount point
    except OSError:
        return 0, 0
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _memory() -> int:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    # Version 2 of control groups, and version 1.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limits += [int(text) for text in _group_files(name) if text.isdecimal()]
    return min(limits)


def _cpus() -> float:
    """CPUs by affinity, and by the quota of the control group."""
    quotas = [text.split() for text in _group_files("cpu.max")]
    old = zip(_group_files("cpu/cpu.cfs_quota_us"), _group_files("cpu/cpu.cfs_period_us"), strict=False)
    quotas += [list(pair) for pair in old]
    limits = [
        int(quota) / int(period)
        for quota, period in quotas
        if quota.isdecimal() and int(quota) and int(period)
    ]
    return min([float(len(os.sched_getaffinity(0))), *limits])


def _group_files(name: str) -> list[str]:
    """A file of this process's control groups: the root's (in a container its own), and that of its path."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    own = [line.split(":", 2)[2].lstrip("/") for line in lines if line.startswith("0::")]
    found = []
    for path in dict.fromkeys([_CGROUPS / name, *(_CGROUPS / part / name for part in own)]):
        try:
            found.append(path.read_text(encoding="utf-8").strip())
        except OSError:
            continue
    return found


def _umask() -> int:
    """Of this process; the system has no call that only reads it, but says it in ``/proc``."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0o022
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0o022)
