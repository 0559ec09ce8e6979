"""Read a YAML file and ``--set`` overrides into a `Config`, or raise one error that lists every problem.

Relative paths (``cache_dir``, directories of the store, keys) resolve against the directory the launch is
started in, so that one config serves a checkout, an installed package and a Ray job, whose working directory
is a copy. An absolute path means the same path on every node. Pydantic's refusals are told by the key as the
user wrote it; no secret is ever shown.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from warmrank.cache_store.backends.object_client import KNOWN_OPTIONS
from warmrank.cache_store.cache_dir.node_files import NodeCache
from warmrank.cache_store.text import defused
from warmrank.orchestrator.config import models
from warmrank.orchestrator.config import store as store_config
from warmrank.orchestrator.config.models import Config, ScriptWorkload, groups
from warmrank.orchestrator.config.store import absolute, is_url, locate_trust, warn_of_off
from warmrank.orchestrator.errors import ConfigError, ConfigProblem
from warmrank.worker import node_caches
from warmrank.worker.settings import expanded, settings

__all__ = ["Config", "groups", "load", "parse"]

_UNUSABLE = re.compile("[\0\ud800-\udfff]")


def load(path: Path | str, overrides: tuple[str, ...] = (), *, world_size: int | None = None) -> Config:
    """Read a config file, apply overrides such as ``timeouts.compile_s=60``, and resolve relative paths.

    The value of an override is read as YAML. The name of the launch defaults to the file's stem, and
    ``parallel.dp`` to what fills the ranks. Another ``world_size`` changes the number of ranks, and
    ``parallel.dp`` with it unless an override sets that.

    Raises:
        ConfigError: the file cannot be read, or anything in it is not as expected.
    """
    data = _read_data(path, overrides, world_size=world_size)
    config = _resolved(parse(data, place=str(path), overrides=overrides), Path.cwd())
    problems = []
    for name, fault in place_faults(config).items():
        given = config.node_caches[name]
        written = given.path if given is not None else ""
        if not written.startswith(("~", "$")):  # nodes look at homes by themselves
            expected = f"a directory of that tool alone; this one {fault}"
            problems.append(_problem(str(path), f"node_caches.{name}.path", shown(written), expected))
    if problems:
        raise ConfigError(problems)
    return config


def parse(data: Mapping[str, Any], *, place: str = "config", overrides: tuple[str, ...] = ()) -> Config:
    """Check plain data, such as a parsed file; paths stay as they are.

    Raises:
        ConfigError: anything in it is not as expected.
    """
    if unusable := dict.fromkeys(_keys_of_unusable(data)):
        found, expected = (
            "a NUL character or half a surrogate pair",
            "a text that paths and variables can hold",
        )
        raise ConfigError(
            _problem(place_of(key, place, overrides, hides=True), key, found, expected) for key in unusable
        )
    try:
        # JSON, because strict mode then knows lists and paths, but takes neither "2" for 2 nor 1 for true.
        return Config.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError(_translate(detail, place, overrides) for detail in details) from None


def _keys_of_unusable(data: object, key: str = "") -> Iterator[str]:
    """Dotted keys of texts that the operating system cannot take."""
    if isinstance(data, str) and _UNUSABLE.search(data):
        yield key
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        inner = f"{key}.{defused(str(name))}".removeprefix(".")
        yield from _keys_of_unusable(name, inner)
        yield from _keys_of_unusable(value, inner)


def written_places(path: Path | str, overrides: tuple[str, ...] = ()) -> dict[str, str]:
    """Cache directory and directories of the store as they are written, by their keys; raises as `load`."""
    data = _read_data(path, overrides)
    config = parse(data, place=str(path), overrides=overrides)
    tiers = config.store.tiers if config.store else ()
    name = "store.tiers.{}.path" if tiers and "tiers" in data["store"] else "store.path"
    return {"cache_dir": str(config.cache_dir)} | {
        name.format(index): tier.path for index, tier in enumerate(tiers) if not is_url(tier.path)
    }


def require_workload(config: Config, place: str = "config") -> None:
    """Refuse a config that names nothing to launch; raises `ConfigError`."""
    if config.workload is None:
        expected = "mapping with entrypoint (or script) and arguments; only exec and sync go without"
        raise ConfigError([_problem(place, "workload", "nothing", expected)])


def _read_data(
    path: Path | str, overrides: tuple[str, ...] = (), *, world_size: int | None = None
) -> dict[str, Any]:
    """The data of a config file, unchecked, with overrides and what follows from them; as `load` says."""
    try:
        with Path(path).open("rb") as file:  # perhaps a pipe, or without an end
            text = file.read(_MAX_SIZE + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        found = f"no readable file ({error})"
        raise ConfigError([_problem(str(path), "", found, "a YAML file")]) from error
    data = read_yaml(text, str(path))
    if not isinstance(data, dict):
        found = f"{shown(data)} at the top level"
        raise ConfigError([_problem(str(path), "", found, "a mapping of keys such as workload and ranks")])
    for override in (*overrides, *([] if world_size is None else [f"ranks={world_size}"])):
        _apply(data, override)
    is_given = any(override.startswith("parallel.dp=") for override in overrides)
    parallel = data.setdefault("parallel", {})
    if isinstance(parallel, dict) and not is_given and (world_size is not None or "dp" not in parallel):
        _fill_with_replicas(parallel, data.get("ranks"))
    if not re.search(models.NAME, stem := Path(path).stem) and "name" not in data:
        expected = f"a key name in it: {_description(('name',))}"
        raise ConfigError([_problem(str(path), "name", f"{shown(stem)}, the file's own name", expected)])
    data.setdefault("name", stem)
    return data


def _fill_with_replicas(parallel: dict[str, Any], world_size: object) -> None:
    """Let the data-parallel size follow from the others; what is no number is refused later."""
    more = parallel.get("axes")
    others = (*parallel.items(), *(more.items() if isinstance(more, dict) else ()))
    sizes = [size for axis, size in others if axis not in {"dp", "axes"}]
    if type(world_size) is int and all(type(size) is int and size > 0 for size in sizes):
        parallel["dp"] = max(1, world_size // math.prod(sizes))


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    place, parts = f"--set {override}", key.split(".")
    if not equals or not all(parts):
        raise ConfigError([_problem(place, "", repr(override), "key=value, such as ranks=4")])
    here: Any = data
    for depth, part in enumerate(parts):
        is_item = isinstance(here, list) and part.isdecimal() and int(part) < len(here)
        if not (is_item or isinstance(here, dict)):
            at = ".".join(parts[:depth])
            raise ConfigError([_problem(place, at, shown(here), f"what {key} can be set in")])
        if depth < len(parts) - 1:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
    value = read_yaml(text, place)
    here[int(parts[-1]) if isinstance(here, list) else parts[-1]] = value


def _resolved(config: Config, base: Path) -> Config:
    changes: dict[str, Any] = {"cache_dir": absolute(config.cache_dir, base)}
    if config.store is not None:
        tiers = tuple(
            tier
            if is_url(tier.path)
            else tier.model_copy(update={"path": str(absolute(Path(tier.path), base))})
            for tier in config.store.tiers
        )
        trust = locate_trust(config.store.trust, base=base)
        warn_of_off(trust, [tier.path for tier in tiers])
        changes["store"] = config.store.model_copy(update={"tiers": tiers, "trust": trust})
    if isinstance(config.workload, ScriptWorkload):
        script = Path(config.workload.script).expanduser()
        if script.is_relative_to(base):
            script = script.relative_to(base)  # ranks look for it in their copy of this directory
        changes["workload"] = config.workload.model_copy(update={"script": script.as_posix()})
    return config.model_copy(update=changes)


def read_yaml(text: str, place: str) -> Any:
    """The data in a text of YAML; raises `ConfigError`, also for a key that stands twice or is no string."""
    if len(text) > _MAX_SIZE:
        raise ConfigError([_problem(place, "", "more than 1 MiB", "a document of a person's size")])
    loader = None
    try:
        loader = _Loader(text)
        loader.name = place
        loader.deep_construct = True  # so that an alias of what it stands in is refused
        return loader.get_single_data()
    except RecursionError:
        problem = _problem(place, "", "hundreds of levels", "a document of a person's size")
        raise ConfigError([problem]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError([_problem(place + line, "", f"broken YAML ({cause})", "valid YAML")]) from error
    finally:
        if loader is not None:
            loader.dispose()


_MAX_SIZE = 2**20
"""Of a document: its bytes; its characters and nodes, with what each alias stands for in the alias' place."""

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Refuses what has no sense in a config, such as a key that stands twice, where YAML would drop one."""

    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag not in {f"{_TAG}{kind}" for kind in ("binary", "omap", "pairs", "set")}
    } | {
        f"{_TAG}timestamp": yaml.SafeLoader.construct_yaml_str,
        f"{_TAG}int": lambda self, node: self.number(node, self.construct_yaml_int(node)),
        f"{_TAG}float": lambda self, node: self.number(node, self.construct_yaml_float(node)),
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """See `yaml.composer.Composer.compose_node`."""
        node = super().compose_node(parent, index)
        if node is not None and node not in self._sizes:
            parts = node.value if isinstance(node, yaml.CollectionNode) else ()
            parts = chain.from_iterable(parts) if isinstance(node, yaml.MappingNode) else parts
            size = sum(self._sizes.get(part, 1) for part in parts) + 1
            self._sizes[node] = size + len(node.value)
            if self._sizes[node] > _MAX_SIZE:
                self.refuse(
                    node, "more than 1 MiB, with aliases written out", "a document of a person's size"
                )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                found = f"the key {key!r} ({type(key).__name__})"
                self.refuse(key_node, found, "a string; put it in quotes")
            if key in seen:
                self.refuse(key_node, f"the key {key!r} twice in one mapping", "each key once")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def number(self, node: yaml.ScalarNode, value: float) -> float:
        """A number that JSON can hold; a whole one as it is written, so that it may stand for a text too."""
        if not math.isfinite(value):
            self.refuse(node, node.value, "a finite number")
        if isinstance(value, int) and node.value != str(value):
            self.refuse(node, f"{node.value}, which YAML takes for {value}", f"{value}, or a text in quotes")
        return value

    @staticmethod
    def refuse(node: yaml.Node, found: str, expected: str) -> None:
        """Raise `ConfigError` that names a node's place."""
        place = f"{node.start_mark.name}:{node.start_mark.line + 1}"
        raise ConfigError([_problem(place, "", found, expected)])


_MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): models.Config,
    ("workload", "entrypoint"): models.EntrypointWorkload,
    ("workload", "script"): models.ScriptWorkload,
    ("parallel",): models.Parallel,
    ("store", "short"): store_config.StoreInShort,
    ("store", "short", "trust"): store_config.TrustConfig,
    ("store", "full"): store_config.StoreConfig,
    ("store", "full", "tiers"): store_config.TierConfig,
    ("store", "full", "trust"): store_config.TrustConfig,
    ("ray",): models.RayConfig,
    ("timeouts",): models.Timeouts,
    ("retries",): models.Retries,
    ("watch",): models.WatchConfig,
    ("node_caches",): models.NodeCacheConfig,
    ("exec",): models.ExecConfig,
    ("exec", "sync"): models.SyncedCache,
}
"""The model at each place of a config; a workload's and a store's have the tag of its kind, a tier's has no
index, and a node cache's no name."""

_OF_JSON = {"an object": "a mapping", "a valid dictionary": "a mapping", "a valid array": "a list"}
"""Pydantic's word for a value of JSON: YAML's word."""


def _translate(detail: ErrorDetails, place: str, overrides: tuple[str, ...]) -> ConfigProblem:
    """One problem out of one of pydantic's details."""
    where, given, kind = tuple(str(part) for part in detail["loc"]), detail["input"], detail["type"]
    if (option := detail.get("ctx", {}).get("option")) is not None:  # of a mapping of options that one
        where, given = (*where, option), given[option]
    dotted = _as_written(where)
    # Nothing else of a config depends on more than one key than the axes, which are to fill the ranks.
    key = ".".join(dotted) or "ranks, parallel"
    secret = kind == "secret" or _is_secret(where)
    found, nearest = "(a value that is not shown here)" if secret else shown(given), ""
    if kind == "unknown_option":
        found, expected = f"an unknown option with value {found}", detail["msg"]
        nearest = _nearest(dotted, sorted(KNOWN_OPTIONS))
    elif kind == "extra_forbidden":
        known = [*_MODELS[_place(where[:-1])].model_fields]
        known += ["tiers"] if where[:-1] == ("store", "short") else []
        found, expected = f"an unknown key with value {found}", f"only {', '.join(known)}"
        nearest = _nearest(dotted, known) or _elsewhere(where[-1])
        if nearest == key:  # of the other kind of workload, or of store
            nearest, expected = "", f"{expected}; {where[-1]} does not go with {known[0]}"
    elif kind == "missing":
        found, expected = "nothing", f"this key: {_description(where)}"
    elif not where:
        found, expected = str(detail["ctx"]["error"]), "the product of all axes to be the number of ranks"
    else:
        expected = detail["msg"] if kind == "secret" else _expected(detail, where)
    place = place_of(key, place, overrides, hides=secret)
    return ConfigProblem(place=place, key=key, found=found, expected=expected, nearest=nearest)


def place_of(key: str, place: str, overrides: Sequence[str], *, hides: bool = False) -> str:
    """The source of the values of dotted keys with commas between them: an override, or the file.

    The last override that set any of the keys counts; its value can be left out (``hides``).
    """
    for override in reversed(overrides):
        name = override.partition("=")[0]
        if any(
            f"{name}.".startswith(f"{each}.") or f"{each}.".startswith(f"{name}.") for each in key.split(", ")
        ):
            return f"--set {name if hides or _is_secret(tuple(name.split('.'))) else override}"
    return place


def _is_secret(where: tuple[str, ...]) -> bool:
    return bool(where) and (where[-1] == "options" or store_config.is_secret(where[-1]))


def _as_written(where: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a user wrote: without the tag of a workload's or a store's kind."""
    return (*where[:1], *where[2:]) if where[:1] in {("workload",), ("store",)} else where


def _place(where: tuple[str, ...]) -> tuple[str, ...]:
    """The key of `_MODELS` for what stands at a location."""
    if where[:1] == ("node_caches",):
        return (*where[:1], *where[2:])
    return tuple(part for part in where if not part.isdigit())


def _nearest(dotted: tuple[str, ...], known: Sequence[str]) -> str:
    close = difflib.get_close_matches(dotted[-1], known, n=1)
    return ".".join((*dotted[:-1], *close)) if close else ""


def _elsewhere(name: str) -> str:
    """The dotted path of a key of that name at another level; empty for none."""
    places = (place for place, model in _MODELS.items() if name in model.model_fields)
    return next((".".join((*_as_written(place), name)) for place in places), "")


def _expected(detail: ErrorDetails, where: tuple[str, ...]) -> str:
    """Allowed values in pydantic's words and the key's own; not twice where those say the same."""
    description, what = _description(where), detail["msg"].removeprefix("Input should be ")
    what = _OF_JSON.get(what, what)
    if isinstance(detail["input"], int | float) and detail["type"] in {"string_type", "literal_error"}:
        what = f"{what}, in quotes"  # without them `off` is none
    if detail["type"] == "string_pattern_mismatch" or description.startswith(what.removeprefix("a ")):
        return description
    return ": ".join(filter(None, (what, description)))


def _description(where: tuple[str, ...]) -> str:
    """The schema's description of a key, or of the nearest key above it that has one."""
    for depth in range(len(where), 0, -1):
        model = _MODELS.get(_place(where[: depth - 1]))
        if model is not None and where[depth - 1] in model.model_fields:
            return model.model_fields[where[depth - 1]].description or ""
    return ""


def shown(value: object) -> str:
    """A value with its type, cut short."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _problem(place: str, key: str, found: str, expected: str) -> ConfigProblem:
    return ConfigProblem(place=place, key=key, found=found, expected=expected)


def place_faults(config: Config) -> dict[str, str]:
    """Faults of the places of node caches, as this process understands the config's paths, by name."""
    named = [cache for cache in declared_caches(config) if cache.name not in node_caches.OWN]
    return node_caches.place_faults(named, config.cache_dir) if named else {}


def declared_caches(config: Config) -> tuple[NodeCache, ...]:
    """Node caches of the config, and engine torchair's own, usable here or not."""
    names = dict.fromkeys((*(node_caches.OWN if config.device == "npu" else ()), *config.node_caches))
    found = (_cache(config, name) for name in names)
    return tuple(cache for cache in found if cache is not None)


def _cache(config: Config, name: str) -> NodeCache | None:
    """A node cache; None for one that the config leaves out."""
    given = config.node_caches.get(name)
    if name in config.node_caches and given is None:
        return None
    if name in node_caches.OWN:
        return node_caches.own(name, config.cache_dir, collect=given.collect if given else "all")
    assert given is not None  # noqa: S101 - only an engine's own are there without being declared
    known = node_caches.operators(settings())
    is_known = name == node_caches.OPERATORS
    return NodeCache(
        name=name,
        directory=known.directory if is_known and not given.path else expanded(given.path),
        patterns=known.patterns if is_known and "patterns" not in given.model_fields_set else given.patterns,
        collect=given.collect,
    )
