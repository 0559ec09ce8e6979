"""Contradictions, certain or likely, between keys of a config that are right by themselves.

An error can never work; a warning works somewhere, or does less than whoever wrote it believes. Facts of this
machine, which the judgement depends on, are gathered by `machine_here`; it makes and changes nothing.

The function that an entrypoint names is looked for, and what it takes, without running any of it: a module
that its path leads to is read, never run; only where the path does not lead to it are its parent packages
imported, because they may look elsewhere. What is not certain to be missing counts as there: ranks look
again, on their nodes.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import stat
import sys
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Literal

from warmrank.cache_store.backends.deadline import all_within
from warmrank.orchestrator.config.models import Config, EntrypointWorkload, RayConfig, ScriptWorkload
from warmrank.orchestrator.config.store import LOOK_S, StoreConfig, choice_of, is_url
from warmrank.orchestrator.text import count_text
from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import check_arguments, no_function, not_imported

Level = Literal["error", "warning"]

_STAGES_WITH_COLLECTIVES = ("capture_s", "first_call_s", "verify_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing that does not go together."""

    level: Level  # whether it can work at all
    keys: tuple[str, ...]  # dotted paths of the keys
    found: str  # what stands there, and why that is odd
    remedy: str  # what to do


def lint(config: Config, machine: Machine) -> tuple[LintFinding, ...]:
    """Findings about settings that do not go together, errors first."""
    found = [*_cpus(config, machine), *_code(config, machine), *_timeouts(config), *_choices(config, machine)]
    if config.store is not None:
        found += [*_overlaps(config, config.store), *_reach(config, config.store, machine)]
        found += _trust(config, config.store, machine)
    return tuple(sorted(found, key=lambda finding: finding.level != "error"))


def _cpus(config: Config, machine: Machine) -> Iterator[LintFinding]:
    asked = config.ranks * config.ray.num_cpus_per_rank
    if machine.num_cpus is not None and asked > machine.num_cpus:
        usable = f", of which this process may use {machine.usable_cpus}"
        offer = (
            f"Ray counts {machine.num_cpus} here{usable if machine.usable_cpus != machine.num_cpus else ''}"
        )
        if config.ray.num_cpus:
            offer = f"ray.num_cpus offers {config.ray.num_cpus}"
        ranks = count_text(config.ranks, "rank") + (" asks" if config.ranks == 1 else " ask")
        yield LintFinding(
            level="error",
            keys=("ranks", "ray.num_cpus_per_rank", "ray.num_cpus"),
            found=f"{ranks} for {asked:g} CPUs, and {offer}",
            remedy=f"set ray.num_cpus to {asked:g} or more, or name a cluster with ray.address",
        )
    if config.ray.address is not None and config.ray.num_cpus is not None:
        yield LintFinding(
            level="warning",
            keys=("ray.num_cpus", "ray.address"),
            found="ray.num_cpus is that of a local Ray, and ray.address names a running one",
            remedy="leave one of them out",
        )
    if config.ray.omp_num_threads > max(config.ray.num_cpus_per_rank, 1.0):
        yield LintFinding(
            level="warning",
            keys=("ray.omp_num_threads", "ray.num_cpus_per_rank"),
            found=f"a rank runs {config.ray.omp_num_threads} threads, and has "
            f"{config.ray.num_cpus_per_rank:g} CPU reserved",
            remedy="set ray.num_cpus_per_rank to the number of threads",
        )


def _code(config: Config, machine: Machine) -> Iterator[LintFinding]:
    """Code that ranks run and that is not here; on a cluster, the nodes may have it."""
    is_cluster = config.ray.address is not None
    started_in = f"start the command in the directory of the code (it is {Path.cwd()} now), or correct"
    only_there = "; where the nodes alone have it, all is well"
    if isinstance(config.workload, ScriptWorkload) and not machine.script:
        script = config.workload.script
        is_certain = not is_cluster or (config.ray.ship_code and not Path(script).is_absolute())
        yield LintFinding(
            level="error" if is_certain else "warning",
            keys=("workload.script",),
            found=f"no file {script} from this directory",
            remedy=f"{started_in} the path{'' if is_certain else only_there}",
        )
    if (fault := machine.entrypoint) is not None:
        is_certain = not is_cluster or is_shipped(fault, config)
        where = f" (read in {fault.source})" if fault.source else ""
        yield LintFinding(
            level="error" if is_certain else "warning",
            keys=("workload.entrypoint",),
            found=f"{fault.error.message.rstrip('.')}{where}",
            remedy=f"{started_in} the config or the code{'' if is_certain else only_there}",
        )
    if machine.shadow is not None:
        yield shadow_finding(machine.shadow)


def shadow_finding(path: Path) -> LintFinding:
    """A module that bears our package's name."""
    return LintFinding(
        level="error",
        keys=("workload",),
        found=f"ranks would import {path} in place of the package warmrank",
        remedy="rename it, or start the command in another directory",
    )


def _timeouts(config: Config) -> Iterator[LintFinding]:
    shorter = [
        name
        for name in _STAGES_WITH_COLLECTIVES
        if getattr(config.timeouts, name) < config.timeouts.collective_s
    ]
    if shorter and config.ranks > 1:
        yield LintFinding(
            level="warning",
            keys=tuple(f"timeouts.{name}" for name in ("collective_s", *shorter)),
            found=f"a collective waits {config.timeouts.collective_s:g} s, longer than {', '.join(shorter)}: "
            "a rank that hangs there is told by the stage's time, not by the collective that it hangs in",
            remedy="set timeouts.collective_s to less than these stages",
        )


def _choices(config: Config, machine: Machine) -> Iterator[LintFinding]:
    """Single choices that cannot work here, or do nothing."""
    if machine.obstacle:
        yield LintFinding(
            level="error" if config.ray.address is None else "warning",
            keys=("cache_dir",),
            found=f"on this machine {machine.obstacle} is no directory, so {config.cache_dir} can be none",
            remedy="name another cache_dir, or move what is in its place",
        )
    if config.engine == "torchair" and config.device != "npu":
        yield LintFinding(
            level="error",
            keys=("engine", "device"),
            found=f"engine torchair compiles for device npu, and device is {config.device}",
            remedy="set device: npu, or engine: auto",
        )
    if config.no_compile and config.store is None:
        yield LintFinding(
            level="warning",
            keys=("no_compile", "store"),
            found="nothing may be compiled, and no store is named: every rank needs a filled cache_dir",
            remedy="name a store, or launch with no_compile: false once",
        )


def _overlaps(config: Config, store: StoreConfig) -> Iterator[LintFinding]:
    cache = Path(os.path.normpath(config.cache_dir))
    for tier in store.tiers:
        place = Path(os.path.normpath(tier.path))
        if not is_url(tier.path) and (cache.is_relative_to(place) or place.is_relative_to(cache)):
            yield LintFinding(
                level="error",
                keys=("cache_dir", "store"),
                found=f"the cache directory {cache} and the store {place} lie in one another",
                remedy="give each a directory of its own",
            )


def _reach(config: Config, store: StoreConfig, machine: Machine) -> Iterator[LintFinding]:
    own = {tier.path for tier in store.tiers} <= set(machine.local_stores)
    if own and config.ray.address is not None:
        yield LintFinding(
            level="warning",
            keys=("store", "ray.address"),
            found=f"{store.location} lies on a disk of this machine alone, and the ranks are on a cluster: "
            "each node would have a store of its own",
            remedy="put the store on a file system that all nodes mount, or into a bucket",
        )


def _trust(config: Config, store: StoreConfig, machine: Machine) -> Iterator[LintFinding]:
    trust = store.trust
    if trust.signing_key is not None and not machine.has_signing_key:
        yield LintFinding(
            level="error",
            keys=("store.trust.signing_key",),
            found=f"no file {trust.signing_key}",
            remedy="make the key with warmrank keys generate, or name another",
        )
    if not (trust.policy == "require" or machine.requires_signature) or trust.signing_key is not None:
        return
    if trust.policy and not trust.trusted_keys and trust.keyring is None:
        yield LintFinding(
            level="error",
            keys=("store.trust.policy", "store.trust.trusted_keys"),
            found="only signed artifacts are believed, and no key is trusted",
            remedy="name a key that signs or keys that are trusted, see `warmrank keys`",
        )
    elif any(tier.mode in {"rw", "required"} for tier in store.tiers):
        why = f" ({machine.requires_signature})" if machine.requires_signature else ""
        own = "; or, for a store of your own, take that right from others (chmod go-w)" if why else ""
        yield LintFinding(
            level="warning" if config.no_compile else "error",
            keys=("store.trust.policy", "store.trust.signing_key"),
            found=f"policy require{why}, and no key that signs: nothing that is compiled could be published",
            remedy="name store.trust.signing_key (warmrank keys generate makes a key), or say with mode: ro "
            f"that the store is only read{own}",
        )


RAY_OVERRIDE = "RAY_OVERRIDE_RESOURCES"
"""The variable that says what a Ray offers, whatever it finds (ray/_private/ray_constants.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of this machine that the judgement of a config depends on."""

    num_cpus: int | None  # that a Ray started here counts; None where none is started, or nobody knows
    usable_cpus: int  # that this process may run on
    local_stores: tuple[str, ...] = ()  # places of the store that are there, on a disk of this machine alone
    entrypoint: EntrypointFault | None = None  # None if it can be called, or there is none
    script: bool = True  # whether the workload's script is there; true where it is none
    obstacle: str = ""  # what is no directory, at or above the cache directory; empty for nothing
    shadow: Path | None = None  # a module here that ranks would import in place of `warmrank`
    requires_signature: str = ""  # why, where the config leaves that open
    has_signing_key: bool = True  # true where none is named


def machine_here(config: Config) -> Machine:
    """Look at this machine; a disk that does not answer is taken for a shared one, with all in order."""
    from warmrank.cache_store.backends.durability import LOCAL_TYPES, file_system_type, read_mounts

    trust = config.store.trust if config.store is not None else None
    paths = [tier.path for tier in config.store.tiers if not is_url(tier.path)] if config.store else []
    mounts = read_mounts()

    def is_local(path: str) -> bool:
        # Of `os.path`, because these raise nothing: what cannot be looked at is not known to be local.
        is_there = os.path.isdir(path)  # noqa: PTH112
        return is_there and file_system_type(Path(os.path.realpath(path)), mounts) in LOCAL_TYPES

    found = all_within([partial(is_local, path) for path in paths], timeout_s=LOOK_S)
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
    """Fault of the config's entrypoint; None where it can be called, or there is none."""
    workload = config.workload
    if not isinstance(workload, EntrypointWorkload):
        return None
    return entrypoint_fault(workload.entrypoint, workload.arguments)


def is_shipped(fault: EntrypointFault, config: Config) -> bool:
    """True if ranks of a cluster run the very file that is at fault, because this directory goes along."""
    source = fault.source
    return config.ray.ship_code and source is not None and source.is_relative_to(Path.cwd())


def obstacle_to(path: Path) -> str:
    """The file in the way of a directory, at a path or above it; empty for none."""
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return ""
        return "" if stat.S_ISDIR(mode) else str(place)
    return ""


def _cpus_of_ray(config: RayConfig) -> int | None:
    """Number of CPUs that a Ray started here counts: by control groups, not by where a process may run."""
    if config.address is not None or RAY_OVERRIDE in os.environ:
        return None
    if config.num_cpus is not None:
        return config.num_cpus
    try:
        from ray._private.utils import get_num_cpus
    except ImportError:
        return os.cpu_count()
    return int(get_num_cpus(override_docker_cpu_warning=True))


_BINDS_UNSEEN = re.compile(r"import \*|\b(__getattr__|globals|exec|vars|setattr|sys\.modules)\b")
"""Words of a module that may bind names which stand nowhere in its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrypointFault:
    """An entrypoint that cannot be called."""

    error: WorkloadError  # what a rank would raise
    source: Path | None = None  # the file that was read; None where the module is not found


def entrypoint_fault(entrypoint: str, arguments: Mapping[str, object]) -> EntrypointFault | None:
    """Say why a call of ``module:function`` with these arguments is certain to fail; None where it is not."""
    module, _, function = entrypoint.partition(":")
    if reason := missing_module(module):
        return EntrypointFault(error=not_imported(entrypoint, reason, _nearest_module(module)))
    source = _source_of(module)
    try:
        with tokenize.open(source or "") as file:
            text = file.read()
        tree = ast.parse(text)
    except SyntaxError as error:
        return EntrypointFault(error=not_imported(entrypoint, f"SyntaxError: {error}"), source=source)
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    try:
        if not re.search(rf"\b{function}\b", text) and not _BINDS_UNSEEN.search(text):
            raise no_function(entrypoint, functions)
        found = functions.get(function)
        is_sure = sum(function in _names_of(node) for node in ast.walk(tree)) == 1
        if found is not None and is_sure and not found.decorator_list:
            check_arguments(entrypoint, _signature(found.args), None, arguments)
    except WorkloadError as error:
        return EntrypointFault(error=error, source=source)
    return None


def _names_of(node: ast.AST) -> list[str]:
    """The names that a node binds, wherever it stands."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.alias(name=name, asname=other):
            return [other or name.partition(".")[0]]
        case ast.Global(names=names):
            return names
        case _:
            return []


def _signature(args: ast.arguments) -> inspect.Signature:
    """The signature of a function; nothing of it runs, so defaults that are no constants are ellipses."""
    for each in ast.walk(args):
        if isinstance(each, ast.arg):
            each.annotation = None
    unknown = ast.Constant(...)
    args.defaults = [each if isinstance(each, ast.Constant) else unknown for each in args.defaults]
    args.kw_defaults = [
        each and (each if isinstance(each, ast.Constant) else unknown) for each in args.kw_defaults
    ]
    stub = ast.fix_missing_locations(ast.Expression(ast.Lambda(args, ast.Constant(None))))
    return inspect.signature(eval(compile(stub, "<signature>", "eval")))  # noqa: S307 - constants alone


def missing_module(name: str) -> str:
    """Error text if the module cannot be imported, else ``""``."""
    importlib.invalidate_caches()
    with _current_directory_first(), redirect_stdout(sys.stderr):
        try:
            is_found = _leads_to(name) is not None or (
                not name.endswith(".py")  # a file's name: nothing to import its module for
                and importlib.util.find_spec(name) is not None
            )
            if is_found or name in sys.modules:  # a parent package may have put it there
                return ""
        except ModuleNotFoundError as error:
            return _words(error, name)
        except Exception:  # noqa: BLE001 - a parent package raised: the ranks tell of it, as of any code
            return ""
    return f"No module named {name!r}"


def _nearest_module(name: str) -> str:
    """The module whose name comes nearest, here or in the packages on the way."""
    places, parts = [str(Path.cwd())], name.split(".")
    for depth, part in enumerate(parts):
        with _current_directory_first():
            spec = _leads_to(".".join(parts[: depth + 1]))
        if spec is None:
            known = [module.name for module in pkgutil.iter_modules(places)]
            close = difflib.get_close_matches(part, known, n=1)
            return ".".join([*parts[:depth], *close, *parts[depth + 1 :]]) if close else ""
        places = list(spec.submodule_search_locations or ())
    return ""


def shadow(directory: Path) -> Path | None:
    """A module in a directory that ranks, which look there first, would import in place of `warmrank`."""
    spec = PathFinder.find_spec("warmrank", [str(directory)])
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    try:  # our package is known by its words: a job has it in a directory of its own
        is_ours = origin.name == "__init__.py" and b"warmrank" in origin.read_bytes().partition(b"\n")[0]
    except OSError:
        return None  # the import tells of it
    return None if is_ours else origin


@contextmanager
def _current_directory_first() -> Iterator[None]:
    """Look for modules where ranks do, who have the directory that a launch is started in on their path."""
    here, before = str(Path.cwd()), list(sys.path)
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path[:] = before


def _leads_to(name: str) -> ModuleSpec | None:
    """The module that the import path leads to, as far as can be said without importing its parents."""
    places, so_far, spec = None, "", None
    for part in name.split("."):
        so_far = f"{so_far}.{part}" if so_far else part
        try:
            spec = PathFinder.find_spec(so_far, places)
        except KeyError:  # a namespace package in another one looks for that among what is imported
            return None
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return spec


def _words(error: ModuleNotFoundError, name: str) -> str:
    """The words of an import; empty where a parent package is there, and misses something else."""
    if isinstance(error.__cause__, AttributeError):
        parent = name.rpartition(".")[0]
        return f"No module named {name!r}; {parent!r} is not a package"
    is_asked_for = error.name == name or name.startswith(f"{error.name}.")
    return str(error) if is_asked_for else ""


def _source_of(module: str) -> Path | None:
    """The file of Python code that a module is in; None where it has none, or may be another one."""
    with _current_directory_first():
        spec = _leads_to(module)
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None
