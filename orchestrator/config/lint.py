"""Contradictions, certain or likely, between keys of a config that are right by themselves.

An error can never work; a warning works somewhere, or does less than whoever wrote it believes. What the
judgement depends on is looked at on this machine; nothing is made or changed, and a disk that does not answer
is taken for a shared one, with all in order.

The function that an entrypoint names is looked for, and what it takes, without running any code: modules are
read. What is not certain to be missing counts as there: ranks look again, on their nodes.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal, TypeVar

from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.backends.directory import LOCAL_TYPES, file_system_type, read_mounts
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.signing.trust import load_trust
from warmrank.cache_store.text import count_text
from warmrank.orchestrator import SHADOW_REMEDY, shadow_here
from warmrank.orchestrator.config.models import (
    DEVICE_RESOURCES,
    Config,
    EntrypointWorkload,
    RayConfig,
    ScriptWorkload,
)
from warmrank.orchestrator.config.store import LOOK_S, StoreConfig, choice_of, is_url
from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import check_arguments, no_function, not_imported

Level = Literal["error", "warning"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing that does not go together."""

    level: Level  # whether it can work at all
    keys: tuple[str, ...]  # dotted paths of the keys
    found: str  # what stands there, and why that is odd
    remedy: str  # what to do


RAY_OVERRIDE = "RAY_OVERRIDE_RESOURCES"
"""The variable that says what a Ray offers, whatever it finds (ray/_private/ray_constants.py)."""


def lint(
    config: Config, *, counts_cpus: bool = True, signs_elsewhere: bool = False
) -> tuple[LintFinding, ...]:
    """Findings about settings that do not go together, errors first.

    CPUs are not counted where the ranks of a job start, nor keys and places looked at where another machine
    signs.
    """
    found = [*_ranks(config, counts_cpus=counts_cpus), *_code(config), *_cache(config)]
    if config.store is not None:
        found += _store(config, config.store)
        found += _trust(config, config.store, signs_elsewhere=signs_elsewhere)
    return tuple(sorted(found, key=lambda finding: finding.level != "error"))


def _ranks(config: Config, *, counts_cpus: bool) -> Iterator[LintFinding]:
    ray, asked = config.ray, config.ranks * config.ray.num_cpus_per_rank
    counts_here = counts_cpus and ray.address is None and RAY_OVERRIDE not in os.environ
    num_cpus = cpus_of_ray(ray) if counts_here else None
    if num_cpus is not None and asked > num_cpus:
        offer, usable = f"Ray counts {num_cpus} here", len(os.sched_getaffinity(0))
        if usable != num_cpus:
            offer += f", of which this process may use {usable}"
        offer = f"ray.num_cpus offers {ray.num_cpus}" if ray.num_cpus else offer
        ranks = count_text(config.ranks, "rank") + (" asks" if config.ranks == 1 else " ask")
        yield LintFinding(
            "error",
            ("ranks", "ray.num_cpus_per_rank", "ray.num_cpus"),
            f"{ranks} for {asked:g} CPUs, and {offer}",
            f"set ray.num_cpus to {asked:g} or more, or name a cluster with ray.address",
        )
    num_devices = accelerators_of_ray(config.device) if counts_here else None
    if num_devices is not None and config.ranks > num_devices:
        found = f"{count_text(config.ranks, 'rank')} on {config.device}, and Ray finds "
        found += f"{count_text(num_devices, DEVICE_RESOURCES[config.device])} here"
        fewer = f"set ranks to {num_devices} or fewer" if num_devices else "set device: cpu"
        yield LintFinding(
            "error",
            ("ranks", "device"),
            found,
            f"{fewer}, or name a cluster with ray.address; `warmrank doctor --device {config.device}` says "
            "what hides devices",
        )
    if ray.address is not None and ray.num_cpus is not None:
        yield LintFinding(
            "warning",
            ("ray.num_cpus", "ray.address"),
            "ray.num_cpus is that of a local Ray, and ray.address names a running one",
            "leave one of them out",
        )
    if ray.omp_num_threads > max(ray.num_cpus_per_rank, 1.0):
        yield LintFinding(
            "warning",
            ("ray.omp_num_threads", "ray.num_cpus_per_rank"),
            f"a rank runs {ray.omp_num_threads} threads, and has {ray.num_cpus_per_rank:g} CPU reserved",
            "set ray.num_cpus_per_rank to the number of threads",
        )
    if config.engine == "torchair" and config.device != "npu":
        yield LintFinding(
            "error",
            ("engine", "device"),
            f"engine torchair compiles for device npu, and device is {config.device}",
            "set device: npu, or engine: auto",
        )


def cpus_of_ray(config: RayConfig) -> int | None:
    """Number of CPUs that a Ray started here counts: by control groups, not by where a process may run.

    None where nobody knows.
    """
    if config.num_cpus is not None:
        return config.num_cpus
    try:
        from ray._private.utils import get_num_cpus
    except ImportError:
        return os.cpu_count()
    return int(get_num_cpus(override_docker_cpu_warning=True))


def accelerators_of_ray(device: str) -> int | None:
    """Number of accelerators of a kind that a Ray started here counts; None for CPUs, or if nobody knows."""
    if device not in DEVICE_RESOURCES:
        return None
    try:
        from ray._private.accelerators import get_accelerator_manager_for_resource
    except ImportError:
        return None
    manager = get_accelerator_manager_for_resource(DEVICE_RESOURCES[device])
    if manager is None:
        return None
    num_devices = int(manager.get_current_node_num_accelerators())
    visible = manager.get_current_process_visible_accelerator_ids()
    return num_devices if visible is None else min(num_devices, len(visible))


def _code(config: Config) -> Iterator[LintFinding]:
    """Code that ranks run and that is not here; on a cluster, the nodes may have it."""
    key, fault, read = "script", "", Path()
    if isinstance(config.workload, ScriptWorkload):
        read = Path(config.workload.script)
        fault = "" if read.is_file() else f"no file {read} from this directory"
    elif found := fault_of(config):
        error, source = found
        key, read = "entrypoint", source or Path("/")
        fault = error.message.rstrip(".") + (f" (read in {read})" if source else "")
    if fault:
        # Nodes get a copy of the current directory.
        is_copied = config.ray.ship_code and (Path.cwd() / read).is_relative_to(Path.cwd())
        is_certain = config.ray.address is None or is_copied
        only_there = "" if is_certain else "; where the nodes alone have it, all is well"
        remedy = f"start the command in the directory of the code (it is {Path.cwd()} now), or correct it"
        yield LintFinding(
            "error" if is_certain else "warning", (f"workload.{key}",), fault, f"{remedy}{only_there}"
        )
    if shadow := shadow_here():
        yield LintFinding("error", ("workload",), f"ranks would import {shadow}", SHADOW_REMEDY)


def _cache(config: Config) -> Iterator[LintFinding]:
    if file := _look(partial(_file_above, config.cache_dir.absolute())):
        yield LintFinding(
            "error" if config.ray.address is None else "warning",
            ("cache_dir",),
            f"{config.cache_dir} cannot be made here, because {file} is no directory",
            "name a directory on the disk of every node",
        )
    if config.no_compile and config.store is None:
        yield LintFinding(
            "warning",
            ("no_compile", "store"),
            "nothing may be compiled, and no store is named: every rank needs a filled cache_dir",
            "name a store, or launch with no_compile: false once",
        )


# Of `os.path`, because these raise nothing: what cannot be looked at is not known to be local, or a file.


def _file_above(path: Path) -> Path | None:
    nearest = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110
    return None if os.path.isdir(nearest) else nearest  # noqa: PTH112


def _is_local(path: str) -> bool:
    is_there = os.path.isdir(path)  # noqa: PTH112
    return is_there and file_system_type(Path(os.path.realpath(path)), read_mounts()) in LOCAL_TYPES


def _is_nested(*paths: str) -> bool:
    """True if one of two paths lies in the other, as they are written, or where their links lead."""

    def is_so(named: Callable[[str], str]) -> bool:
        one, two = (Path(named(path)) for path in paths)
        return one.is_relative_to(two) or two.is_relative_to(one)

    return is_so(os.path.normpath) or bool(_look(partial(is_so, os.path.realpath)))


def _look(at: Callable[[], T]) -> T | None:
    return all_within([at], timeout_s=LOOK_S)[0]


def _store(config: Config, store: StoreConfig) -> Iterator[LintFinding]:
    places = [tier.path for tier in store.tiers if not is_url(tier.path)]
    own = "give each a directory of its own"
    for place in places:
        if _is_nested(str(config.cache_dir), place):
            both = f"the cache directory {config.cache_dir} and the store {place} lie in one another"
            yield LintFinding("error", ("cache_dir", "store"), both, own)
    if len(places) > 1 and _is_nested(*places):
        both = f"{' and '.join(places)} are the same directory, or lie in one another"
        yield LintFinding("error", ("store.tiers",), both, own)
    if config.ray.address is not None and all(
        not is_url(tier.path) and _look(partial(_is_local, tier.path)) for tier in store.tiers
    ):
        yield LintFinding(
            "warning",
            ("store", "ray.address"),
            f"{store.location} lies on a disk of this machine alone, and the ranks are on a cluster: each "
            "node would have a store of its own",
            "put the store on a file system that all nodes mount, or into a bucket",
        )


def _trust(config: Config, store: StoreConfig, *, signs_elsewhere: bool) -> Iterator[LintFinding]:
    trust = store.trust
    if trust.signing_key is not None:
        try:
            key, ring = None if signs_elsewhere else trust.signing_key, trust.keyring
            load_trust("require", signing_key=key, keyring=ring, revoked=trust.revoked).check_signer()
        except StoreError as fault:
            remedy = "make a key with warmrank keys generate, or name another"
            yield LintFinding("error", ("store.trust.signing_key",), str(fault), remedy)
        return
    if trust.policy == "require" and not trust.trusted_keys and trust.keyring is None:
        yield LintFinding(
            "error",
            ("store.trust.policy", "store.trust.trusted_keys"),
            "only signed artifacts are believed, and no key is trusted",
            "name a key that signs or keys that are trusted, see `warmrank keys`",
        )
        return
    policy, place = choice_of(trust, () if signs_elsewhere else [tier.path for tier in store.tiers])
    if policy == "require" and any(tier.mode in {"rw", "required"} for tier in store.tiers):
        why = f" ({place})" if place else ""
        own = "; or, for a store of your own, take that right from others (chmod go-w)" if why else ""
        yield LintFinding(
            "warning" if config.no_compile else "error",
            ("store.trust.policy", "store.trust.signing_key"),
            f"policy require{why}, and no key that signs: nothing that is compiled could be published",
            "name store.trust.signing_key (warmrank keys generate makes a key), or say with mode: ro "
            f"that the store is only read{own}",
        )


_BINDS_UNSEEN = re.compile(r"import \*|\b(__getattr__|__path__|globals|exec|vars|setattr|sys\.modules)\b")
"""Words of a module that may bind names which stand nowhere in its text, or find modules elsewhere."""


def fault_of(config: Config) -> tuple[WorkloadError, Path | None] | None:
    """The error that ranks would raise for the config's entrypoint, and the file that was read.

    None where there is no entrypoint, or where a call of it may go well.
    """
    if not isinstance(config.workload, EntrypointWorkload):
        return None
    entrypoint = config.workload.entrypoint
    module, _, function = entrypoint.partition(":")
    spec, nearest = find_module(module)
    if nearest is not None:
        return not_imported(entrypoint, f"No module named {module!r}", nearest), None
    source = Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
    text = _text_of(source)
    if text is None:
        return None
    if not re.search(rf"\b{function}\b", text):
        if _BINDS_UNSEEN.search(text):
            return None
        return no_function(entrypoint, re.findall(r"^def (\w+)", text, re.MULTILINE)), source
    try:
        tree = ast.parse(text)
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
        is_sure = sum(_binds(node, function) for node in ast.walk(tree)) == 1
        if found and is_sure and not found[0].decorator_list:
            check_arguments(entrypoint, _signature(found[0].args), None, config.workload.arguments)
    except SyntaxError as error:
        return not_imported(entrypoint, f"SyntaxError: {error}"), source
    except WorkloadError as error:
        return error, source
    return None


def _binds(node: ast.AST, name: str) -> bool:
    """True if a node binds a name, wherever it stands."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Global):
        return name in node.names
    return name == (getattr(node, "asname", None) or getattr(node, "name", None))


def _signature(args: ast.arguments) -> inspect.Signature:
    """The signature of a function; nothing of it runs, so an ellipsis stands for unknown defaults."""
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


def find_module(name: str) -> tuple[ModuleSpec | None, str | None]:
    """Find a module as ranks do, in the current directory first; imports nothing.

    Returns:
        Its spec, None where that cannot be said; and where the module is certain to be missing, the nearest
        one that is there, or an empty text.
    """
    parts, places, spec = name.split("."), [str(Path.cwd()), *sys.path], None
    for depth, part in enumerate(parts):
        so_far = ".".join(parts[: depth + 1])
        try:
            specs = (finder.find_spec(so_far, places) for finder in sys.meta_path)
            spec, parent = next(filter(None, specs), None), spec
        except KeyError:  # a namespace package in another one looks for that among what is imported
            return None, None
        if spec is None:
            package = Path(parent.origin) if parent is not None and parent.origin else None
            if so_far in sys.modules or _BINDS_UNSEEN.search(_text_of(package) or ""):
                return None, None
            near_places = places if depth else places[:1]
            known = [module.name for module in pkgutil.iter_modules(near_places)]
            close = difflib.get_close_matches(part, known, n=1)
            return None, ".".join([*parts[:depth], *close, *parts[depth + 1 :]]) if close else ""
        places = list(spec.submodule_search_locations or ())
    return spec, None


def _text_of(source: Path | None) -> str | None:
    """The text of a module; None where it cannot be read, which ranks tell of."""
    try:
        return source.read_text(encoding="utf-8") if source else None
    except (OSError, UnicodeDecodeError):
        return None
