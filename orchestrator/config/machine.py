"""Looks at what can be known of a launch on the machine that it is started on, before anything is started.

Invariant: nothing is made or changed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.entrypoint import EntrypointFault, entrypoint_fault, shadow
from warmrank.orchestrator.config.models import Config, EntrypointWorkload, RayConfig, ScriptWorkload
from warmrank.orchestrator.config.store import is_url
from warmrank.orchestrator.config.trust import LOOK_S, choice_of

_MOUNTS = Path("/proc/self/mounts")
RAY_OVERRIDE = "RAY_OVERRIDE_RESOURCES"
"""What a Ray offers, whatever it finds (ray/_private/ray_constants.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What of this machine the judgement of a config depends on.

    Attributes:
        num_cpus: that a Ray started here counts; None where none is started, or nobody knows.
        usable_cpus: that this process may run on.
        local_stores: places of the store that are there, on a disk of this machine alone.
        entrypoint: why the entrypoint cannot be called; None where it can, or there is none.
        script: whether the workload's script is there; true where it is none.
        obstacle: what is no directory, at or above the cache directory; empty for nothing.
        shadow: a module of the current directory that ranks would import in place of `warmrank`.
        requires_signature: why nothing unsigned is taken from the store, where the config leaves that open.
        has_signing_key: whether the file of the signing key is there; true where none is named.
    """

    num_cpus: int | None
    usable_cpus: int
    local_stores: tuple[str, ...] = ()
    entrypoint: EntrypointFault | None = None
    script: bool = True
    obstacle: str = ""
    shadow: Path | None = None
    requires_signature: str = ""
    has_signing_key: bool = True


def look(config: Config) -> Machine:
    """Look at this machine; a disk that does not answer is taken for a shared one, with all in order."""
    trust = config.store.trust if config.store is not None else None
    paths = [tier.path for tier in config.store.tiers if not is_url(tier.path)] if config.store else []
    mounts = _MOUNTS.read_text(encoding="utf-8")
    found = all_within([partial(_is_local, Path(path), mounts) for path in paths], timeout_s=LOOK_S)
    (obstacle,) = all_within([partial(obstacle_to, config.cache_dir)], timeout_s=LOOK_S)
    script = config.workload.script if isinstance(config.workload, ScriptWorkload) else ""
    return Machine(
        num_cpus=_cpus_of_ray(config.ray),
        usable_cpus=len(os.sched_getaffinity(0)),
        local_stores=tuple(path for path, is_local in zip(paths, found, strict=True) if is_local),
        entrypoint=fault_of(config),
        script=not script or Path(script).is_file(),
        obstacle=obstacle or "",
        shadow=shadow(Path.cwd()),
        requires_signature=choice_of(config.store.trust, [tier.path for tier in config.store.tiers])[1]
        if config.store
        else "",
        has_signing_key=trust is None or trust.signing_key is None or trust.signing_key.exists(),
    )


def fault_of(config: Config) -> EntrypointFault | None:
    """Why the config's entrypoint cannot be called; None where it can, or there is none."""
    workload = config.workload
    if not isinstance(workload, EntrypointWorkload):
        return None
    return entrypoint_fault(workload.entrypoint, workload.arguments)


def is_shipped(fault: EntrypointFault, config: Config) -> bool:
    """Whether ranks of a cluster run the very file that is at fault, because this directory goes along."""
    source = fault.source
    return config.ray.ship_code and source is not None and source.is_relative_to(Path.cwd())


def obstacle_to(path: Path) -> str:
    """What is no directory, at a path or above it; empty where a directory is or can be."""
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return ""
        return "" if stat.S_ISDIR(mode) else str(place)
    return ""


def _is_local(path: Path, mounts: str) -> bool:
    """Whether a directory is there, on a disk of this machine alone."""
    from warmrank.cache_store.backends.durability import LOCAL_TYPES, file_system_type

    return path.is_dir() and file_system_type(path.resolve(), mounts) in LOCAL_TYPES


def _cpus_of_ray(config: RayConfig) -> int | None:
    """How many CPUs a Ray started here counts: Ray asks control groups, and not what a process may run on."""
    if config.address is not None or RAY_OVERRIDE in os.environ:
        return None
    if config.num_cpus is not None:
        return config.num_cpus
    try:
        from ray._private.utils import get_num_cpus
    except ImportError:
        return os.cpu_count()
    return int(get_num_cpus(override_docker_cpu_warning=True))
