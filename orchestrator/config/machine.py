"""Looks at what can be known of a launch on the machine that it is started on, before anything is started.

Invariants: nothing is made or changed. A module that its path leads to is found without running any code of
the user's; only where it does not are its parent packages imported, because they may look elsewhere. What is
not certain to be missing counts as there: ranks look again, on their nodes.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

from orchestrator.bounded import all_within
from orchestrator.config.models import Config, EntrypointWorkload, RayConfig, ScriptWorkload
from orchestrator.config.store import is_url
from orchestrator.config.trust import LOOK_S

_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What of this machine the judgement of a config depends on.

    Attributes:
        num_cpus: that a Ray started here counts.
        usable_cpus: that this process may run on.
        local_stores: places of the store that are there, on a disk of this machine alone.
        missing_module: what an import of the entrypoint's module says; empty where it is found, or is none.
        script: whether the workload's script is there; true where it is none.
        obstacle: what is no directory, at or above the cache directory; empty for nothing.
    """

    num_cpus: int
    usable_cpus: int
    local_stores: tuple[str, ...] = ()
    missing_module: str = ""
    script: bool = True
    obstacle: str = ""


def look(config: Config) -> Machine:
    """Look at this machine; a disk that does not answer is taken for a shared one, with all in order."""
    paths = [tier.path for tier in config.store.tiers if not is_url(tier.path)] if config.store else []
    mounts = _MOUNTS.read_text(encoding="utf-8")
    found = all_within([partial(_is_local, Path(path), mounts) for path in paths], timeout_s=LOOK_S)
    (obstacle,) = all_within([partial(obstacle_to, config.cache_dir)], timeout_s=LOOK_S)
    script = config.workload.script if isinstance(config.workload, ScriptWorkload) else ""
    return Machine(
        num_cpus=_cpus_of_ray(config.ray),
        usable_cpus=len(os.sched_getaffinity(0)),
        local_stores=tuple(path for path, is_local in zip(paths, found, strict=True) if is_local),
        missing_module=missing_module(module) if (module := module_of(config)) else "",
        script=not script or Path(script).is_file(),
        obstacle=obstacle or "",
    )


def module_of(config: Config) -> str:
    """Name of the module that the entrypoint is in; empty for a script."""
    workload = config.workload
    return workload.entrypoint.partition(":")[0] if isinstance(workload, EntrypointWorkload) else ""


def missing_module(name: str) -> str:
    """What an import of a module would say that is not there; empty where it is, or may be."""
    importlib.invalidate_caches()
    with _current_directory_first(), redirect_stdout(sys.stderr):
        try:
            is_found = _leads_to(name) or importlib.util.find_spec(name) is not None
            if is_found or name in sys.modules:  # a parent package may have put it there
                return ""
        except ModuleNotFoundError as error:
            return _words(error, name)
        except Exception:  # noqa: BLE001 - a parent package raised: the ranks tell of it, as of any code
            return ""
    return f"No module named {name!r}"


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


@contextmanager
def _current_directory_first() -> Iterator[None]:
    """Look for modules where ranks do, who have the directory that a launch is started in on their path."""
    here, before = str(Path.cwd()), list(sys.path)
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path[:] = before


def _leads_to(name: str) -> bool:
    """Whether the import path leads to a module, as far as can be said without importing its parents."""
    places, so_far = None, ""
    for part in name.split("."):
        so_far = f"{so_far}.{part}" if so_far else part
        try:
            spec = PathFinder.find_spec(so_far, places)
        except KeyError:  # a namespace package in another one looks for that among what is imported
            return False
        if spec is None:
            return False
        places = spec.submodule_search_locations or []
    return True


def _words(error: ModuleNotFoundError, name: str) -> str:
    """The words of an import; empty where a parent package is there, and misses something else."""
    if isinstance(error.__cause__, AttributeError):
        parent = name.rpartition(".")[0]
        return f"No module named {name!r}; {parent!r} is not a package"
    is_asked_for = error.name == name or name.startswith(f"{error.name}.")
    return str(error) if is_asked_for else ""


def _is_local(path: Path, mounts: str) -> bool:
    """Whether a directory is there, on a disk of this machine alone."""
    from cache_store.backends.durability import LOCAL_TYPES, file_system_type

    return path.is_dir() and file_system_type(path.resolve(), mounts) in LOCAL_TYPES


def _cpus_of_ray(config: RayConfig) -> int:
    """How many CPUs a Ray started here counts: Ray asks control groups, and not what a process may run on."""
    everyone = os.cpu_count() or 1
    if config.address is not None or config.num_cpus is not None:
        return everyone  # nobody asks
    try:
        from ray._private.utils import get_num_cpus
    except ImportError:
        return everyone
    return int(get_num_cpus(override_docker_cpu_warning=True))
