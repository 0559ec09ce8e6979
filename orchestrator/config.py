"""From a YAML file and ``--set`` overrides to a `Config`, or to one error that lists every problem.

Relative paths (``cache_dir``, ``store.path``, keys) resolve against the directory the launch is started in,
so that one config serves a checkout, an installed package and a Ray job, whose working directory is a copy.
An absolute path means the same path on every node.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator import config_models as models
from orchestrator.config_models import Config, groups
from orchestrator.errors import ConfigError, ConfigProblem

__all__ = ["Config", "groups", "load", "parse"]

_MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Config,
    ("workload", "entrypoint"): models.EntrypointWorkload,
    ("workload", "script"): models.ScriptWorkload,
    ("parallel",): models.Parallel,
    ("store",): models.StoreConfig,
    ("store", "trust"): models.TrustConfig,
    ("ray",): models.RayConfig,
    ("timeouts",): models.Timeouts,
}
"""The model at each place of a config; a workload's place ends with the tag of its kind."""


def load(path: Path | str, overrides: tuple[str, ...] = ()) -> Config:
    """Read a config file, apply overrides such as ``timeouts.compile_s=60``, and resolve relative paths.

    The value of an override is read as YAML. The name of the launch defaults to the file's stem.

    Raises:
        ConfigError: the file cannot be read, or anything in it is not as expected.
    """
    data = _read(Path(path))
    for override in overrides:
        _apply(data, override)
    data.setdefault("name", Path(path).stem)
    return _resolved(parse(data, place=str(path), overrides=overrides), Path.cwd())


def parse(data: Mapping[str, Any], *, place: str = "config", overrides: tuple[str, ...] = ()) -> Config:
    """Check plain data, such as a parsed file; paths stay as they are.

    Raises:
        ConfigError: anything in it is not as expected.
    """
    if odd := tuple(_not_plain(data, ())):
        raise ConfigError([_problem(place, ".".join(key), _shown(value), _PLAIN) for key, value in odd])
    try:
        # JSON, because strict mode then knows lists and paths, but takes neither "2" for 2 nor 1 for true.
        return Config.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError([_translate(detail, place, overrides) for detail in details]) from None


_PLAIN = "strings, finite numbers, true, false, null, lists, and mappings with string keys"


def _not_plain(value: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Keys and values of what JSON cannot hold: dates, not-a-number, keys that are no strings."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(name, str):
                yield from _not_plain(item, (*key, name))
            else:
                yield (*key, repr(name)), name
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_plain(item, (*key, str(index)))
    elif not isinstance(value, str | bool | int | None) and not (
        isinstance(value, float) and math.isfinite(value)
    ):
        yield key, value


def _problem(place: str, key: str, found: str, expected: str) -> ConfigProblem:
    return ConfigProblem(place=place, key=key, found=found, expected=expected)


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
        raise ConfigError([_problem(place, "", found, expected)])


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"no readable file ({error})"
        raise ConfigError([_problem(str(path), "", found, "a YAML file; see cluster_configs/")]) from error
    data = _yaml(text, str(path))
    if not isinstance(data, dict):
        found = f"{_shown(data)} at the top level"
        raise ConfigError([_problem(str(path), "", found, "a mapping of keys such as workload and ranks")])
    return data


def _yaml(text: str, place: str) -> Any:
    loader = _Loader(text)
    loader.name = place
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or "not YAML"
        raise ConfigError([_problem(place + line, "", f"broken YAML ({cause})", "valid YAML")]) from error
    finally:
        loader.dispose()


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError([_problem(f"--set {override}", "", repr(override), "key=value, such as ranks=4")])
    here = data
    for depth, part in enumerate(parts[:-1]):
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            at = ".".join(parts[: depth + 1])
            raise ConfigError(
                [_problem(f"--set {override}", at, _shown(here), f"a mapping, to set {key} in")]
            )
    here[parts[-1]] = _yaml(text, f"--set {override}")


def _translate(detail: ErrorDetails, place: str, overrides: tuple[str, ...]) -> ConfigProblem:
    where = tuple(str(part) for part in detail["loc"])
    dotted = tuple(part for index, part in enumerate(where) if not (index == 1 and where[0] == "workload"))
    key = ".".join(dotted) or "ranks, parallel"
    nearest = ""
    if detail["type"] == "extra_forbidden":
        found = f"an unknown key with value {_shown(detail['input'])}"
        known = tuple(_MODELS[where[:-1]].model_fields)
        expected, nearest = f"only {', '.join(known)}", _nearest(where, dotted, known)
    elif detail["type"] == "missing":
        found, expected = "nothing", f"this key: {_description(where)}"
    elif not where:
        found, expected = str(detail["ctx"]["error"]), "the product of all axes to be the number of ranks"
    else:
        found, expected = _shown(detail["input"]), _expected(detail["msg"], where)
    from_override = next((text for text in overrides if _covers(text.partition("=")[0], key)), None)
    place = f"--set {from_override}" if from_override else place
    return ConfigProblem(place=place, key=key, found=found, expected=expected, nearest=nearest)


def _expected(message: str, where: tuple[str, ...]) -> str:
    what = message.removeprefix("Input should be ")
    description = _description(where)
    return f"{what}: {description}" if description else what


def _covers(override_key: str, key: str) -> bool:
    return key == override_key or key.startswith(f"{override_key}.")


def _nearest(where: tuple[str, ...], dotted: tuple[str, ...], known: tuple[str, ...]) -> str:
    """Dotted path of the nearest key at the same level, else of the same key at another; empty for none."""
    close = difflib.get_close_matches(where[-1], known, n=1)
    if close:
        return ".".join((*dotted[:-1], close[0]))
    for place, model in _MODELS.items():
        if where[-1] in model.model_fields:
            level = place[:1] if place[:1] == ("workload",) else place
            return ".".join((*level, where[-1]))
    return ""


def _description(where: tuple[str, ...]) -> str:
    """What the schema says of a key, or of the nearest key above it that it describes."""
    for depth in range(len(where), 0, -1):
        model = _MODELS.get(where[: depth - 1])
        if model is not None and where[depth - 1] in model.model_fields:
            return model.model_fields[where[depth - 1]].description or ""
    return ""


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _resolved(config: Config, base: Path) -> Config:
    changes: dict[str, Any] = {"cache_dir": _absolute(config.cache_dir, base)}
    if config.store is not None:
        trust, key = config.store.trust, config.store.trust.signing_key
        trusted = {name: _absolute(path, base) for name, path in trust.trusted_keys.items()}
        trust = trust.model_copy(
            update={"signing_key": key and _absolute(key, base), "trusted_keys": trusted}
        )
        path = _absolute(config.store.path, base)
        changes["store"] = config.store.model_copy(update={"path": path, "trust": trust})
    if isinstance(config.workload, models.ScriptWorkload):
        script = Path(config.workload.script).expanduser()
        if script.is_relative_to(base):
            script = script.relative_to(base)  # ranks look for it in their copy of this directory
        changes["workload"] = config.workload.model_copy(update={"script": script.as_posix()})
    return config.model_copy(update=changes)


def _absolute(path: Path, base: Path) -> Path:
    return base / path.expanduser()
