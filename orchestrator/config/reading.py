"""Read a YAML file and ``--set`` overrides into a `Config`, or raise one error that lists every problem.

Relative paths (``cache_dir``, directories of the store, keys) resolve against the directory the launch is
started in, so that one config serves a checkout, an installed package and a Ray job, whose working directory
is a copy.
An absolute path means the same path on every node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from warmrank.cache_store.cache_dir.node_files import NodeCache
from warmrank.orchestrator.config.models import Config, ScriptWorkload, groups
from warmrank.orchestrator.config.problems import shown, translate
from warmrank.orchestrator.config.store import absolute, is_url, locate_trust, warn_of_off
from warmrank.orchestrator.errors import ConfigError, ConfigProblem
from warmrank.worker import node_caches
from warmrank.worker.settings import expanded, settings

__all__ = ["Config", "groups", "load", "parse"]


def load(path: Path | str, overrides: tuple[str, ...] = (), *, world_size: int | None = None) -> Config:
    """Read a config file, apply overrides such as ``timeouts.compile_s=60``, and resolve relative paths.

    The value of an override is read as YAML. The name of the launch defaults to the file's stem, and
    ``parallel.dp`` to what fills the ranks. Another ``world_size`` changes the number of ranks, and
    ``parallel.dp`` with it unless an override sets that.

    Raises:
        ConfigError: the file cannot be read, or anything in it is not as expected.
    """
    data = read_data(path, overrides, world_size=world_size)
    config = _resolved(parse(data, place=str(path), overrides=overrides), Path.cwd())
    _check_node_caches(config, str(path))
    return config


def read_data(
    path: Path | str, overrides: tuple[str, ...] = (), *, world_size: int | None = None
) -> dict[str, Any]:
    """The data of a config file, unchecked, with overrides and what follows from them; as `load` says."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"no readable file ({error})"
        raise ConfigError([problem(str(path), "", found, "a YAML file")]) from error
    data = read_yaml(text, str(path))
    if not isinstance(data, dict):
        found = f"{shown(data)} at the top level"
        raise ConfigError([problem(str(path), "", found, "a mapping of keys such as workload and ranks")])
    for override in (*overrides, *([] if world_size is None else [f"ranks={world_size}"])):
        _apply(data, override)
    is_given = any(override.startswith("parallel.dp=") for override in overrides)
    parallel = data.get("parallel", {})
    if not is_given and (world_size is not None or (isinstance(parallel, dict) and "dp" not in parallel)):
        _fill_with_replicas(data)
    data.setdefault("name", Path(path).stem)
    return data


def relative_places(path: Path | str, overrides: tuple[str, ...] = ()) -> dict[str, str]:
    """Relative paths of the cache directory and the store's directories, by their keys; raises as `load`."""
    data = read_data(path, overrides)
    config = parse(data, place=str(path), overrides=overrides)
    tiers = config.store.tiers if config.store else ()
    name = "store.tiers.{}.path" if tiers and "tiers" in data["store"] else "store.path"
    places = {"cache_dir": str(config.cache_dir)} | {
        name.format(index): tier.path for index, tier in enumerate(tiers) if not is_url(tier.path)
    }
    return {key: place for key, place in places.items() if not Path(place).expanduser().is_absolute()}


def require_workload(config: Config, place: str = "config") -> None:
    """Refuse a config that names nothing to launch; raises `ConfigError`."""
    if config.workload is None:
        expected = "mapping with entrypoint (or script) and arguments; only exec and sync go without"
        raise ConfigError([problem(place, "workload", "nothing", expected)])


def parse(data: Mapping[str, Any], *, place: str = "config", overrides: tuple[str, ...] = ()) -> Config:
    """Check plain data, such as a parsed file; paths stay as they are.

    Raises:
        ConfigError: anything in it is not as expected.
    """
    try:
        # JSON, because strict mode then knows lists and paths, but takes neither "2" for 2 nor 1 for true.
        return Config.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError(translate(detail, place, overrides) for detail in details) from None


def _check_node_caches(config: Config, place: str) -> None:
    """Refuse node caches that can lie on no node where the config says; nodes look at homes by themselves."""
    problems = []
    for name, fault in place_faults(config).items():
        given = config.node_caches[name]
        written = given.path if given is not None else ""
        if not written.startswith(("~", "$")):
            expected = f"a directory of that tool alone; this one {fault}"
            problems.append(problem(place, f"node_caches.{name}.path", shown(written), expected))
    if problems:
        raise ConfigError(problems)


def _fill_with_replicas(data: dict[str, Any]) -> None:
    """Let the data-parallel size follow from the others; what is no mapping of numbers is refused later."""
    parallel, world_size = data.setdefault("parallel", {}), data.get("ranks")
    if isinstance(parallel, dict) and type(world_size) is int:
        more = parallel.get("axes")
        others = (*parallel.items(), *(more.items() if isinstance(more, dict) else ()))
        sizes = [size for axis, size in others if axis not in {"dp", "axes"}]
        if all(type(size) is int and size > 0 for size in sizes):
            parallel["dp"] = max(1, world_size // math.prod(sizes))


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError([problem(f"--set {override}", "", repr(override), "key=value, such as ranks=4")])
    here: Any = data
    for depth, part in enumerate(parts):
        is_item = isinstance(here, list) and part.isdecimal() and int(part) < len(here)
        if not (is_item or isinstance(here, dict)):
            at = ".".join(parts[:depth])
            raise ConfigError([problem(f"--set {override}", at, shown(here), f"what {key} can be set in")])
        if depth < len(parts) - 1:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
    here[int(parts[-1]) if isinstance(here, list) else parts[-1]] = read_yaml(
        text, f"--set {override}", key=tuple(parts)
    )


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


_TEXTS = (
    ("env", "{}"),
    ("workload", "arguments", "[]"),
    ("ray", "labels", "{}"),
    *(("store", *tier, *key) for tier in ((), ("tiers", "[]")) for key in (("mode",), ("options", "{}"))),
    ("store", "trust", "policy"),
    ("store", "trust", "revoked", "[]"),
    ("audit",),
)
"""Places of texts in a config, of which YAML would make numbers, dates or booleans (``off``).

``{}`` is each key of a mapping, ``[]`` each item of a list.
"""


def read_yaml(text: str, place: str, *, key: tuple[str, ...] = ()) -> Any:
    """The data in a text of YAML, which stands at ``key`` of a config; raises `ConfigError`.

    A key that stands twice is an error, and so is what JSON cannot hold: a date, not-a-number, a key that is
    no string. A number, boolean or date at `_TEXTS` is the text as it is written.
    """
    loader = _Loader(text)
    loader.name = place
    try:
        node = loader.get_single_node()
        paths = [path[len(key) :] for path in _TEXTS if _leads(path, key)]
        data = None if node is None else loader.construct_document(_with_texts(node, paths))
        odd = tuple(_not_plain(data, key))
    except RecursionError:
        found = "an alias of what it stands in, or hundreds of levels"
        raise ConfigError([problem(place, "", found, "a document of a person's size")]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or "not YAML"
        raise ConfigError([problem(place + line, "", f"broken YAML ({cause})", "valid YAML")]) from error
    finally:
        loader.dispose()
    if odd:
        raise ConfigError(problem(place, ".".join(at), shown(value), _PLAIN) for at, value in odd)
    return data


def _leads(path: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """True if a key is a path's, or above it."""
    steps = zip(path, key, strict=False)
    return len(key) <= len(path) and all(
        step in {part, "{}"} or (step == "[]" and part.isdecimal()) for step, part in steps
    )


_GUESSED = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "timestamp")}


def _with_texts(node: yaml.Node, paths: Sequence[tuple[str, ...]]) -> yaml.Node:
    """The node with texts at these paths; a copy, because an alias may use the same node elsewhere."""
    place = node.start_mark, node.end_mark
    if isinstance(node, yaml.ScalarNode) and () in paths and node.tag in _GUESSED:
        return yaml.ScalarNode("tag:yaml.org,2002:str", node.value, *place)
    if isinstance(node, yaml.SequenceNode) and (below := [path[1:] for path in paths if path[:1] == ("[]",)]):
        return yaml.SequenceNode(node.tag, [_with_texts(item, below) for item in node.value], *place)
    if isinstance(node, yaml.MappingNode) and (keyed := [path for path in paths if path and path[0] != "[]"]):
        items = [(key, _with_texts(value, _below(keyed, key))) for key, value in node.value]
        return yaml.MappingNode(node.tag, items, *place)
    return node


def _below(paths: Sequence[tuple[str, ...]], key: yaml.Node) -> list[tuple[str, ...]]:
    """Rests of paths below a key; below a merge (``<<``) the whole paths, also in each mapping of a list."""
    if key.tag == "tag:yaml.org,2002:merge":
        return [*paths, *(("[]", *path) for path in paths)]
    return [path[1:] for path in paths if path[0] in {key.value, "{}"}]


def problem(place: str, key: str, found: str, expected: str) -> ConfigProblem:
    """A `ConfigProblem` without a nearest key."""
    return ConfigProblem(place=place, key=key, found=found, expected=expected)


_PLAIN = "strings, finite numbers, true, false, null, lists, and mappings with string keys"


def _not_plain(value: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _not_plain(item, (*key, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_plain(item, (*key, str(index)))
    elif not isinstance(value, str | bool | int | None) and not (
        isinstance(value, float) and math.isfinite(value)
    ):
        yield key, value


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML would drop the first in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                self._refuse(
                    key_node, f"the key {key!r} ({type(key).__name__})", "a string; put it in quotes"
                )
            if key in seen:
                self._refuse(key_node, f"the key {key!r} twice in one mapping", "each key once")
            seen.add(key)
        return super().construct_mapping(node, deep)

    @staticmethod
    def _refuse(node: yaml.Node, found: str, expected: str) -> None:
        place = f"{node.start_mark.name}:{node.start_mark.line + 1}"
        raise ConfigError([problem(place, "", found, expected)])


def node_caches_of(config: Config) -> tuple[NodeCache, ...]:
    """The node caches of this node: engine torchair's own on npu, and those that the config declares."""
    faults = place_faults(config)
    return tuple(cache for cache in declared_caches(config) if cache.name not in faults)


def place_faults(config: Config) -> dict[str, str]:
    """Faults of the places of node caches, as this process understands the config's paths, by name."""
    own = {name: node_caches.engine_directory(config.cache_dir, name) for name in node_caches.OWN}
    named = [cache for cache in declared_caches(config) if cache.name not in own]
    return node_caches.place_faults(named, config.cache_dir, own)


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
