"""YAML as this package reads it: plain data only, and no key twice in one mapping.

What is wrong with a text is a `ConfigError` that names the file and the line.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from warmrank.orchestrator.config.problems import shown
from warmrank.orchestrator.errors import ConfigError, ConfigProblem


def read_mapping(path: Path, *, expected: str) -> dict[str, Any]:
    """The mapping at the top level of a YAML file.

    Args:
        path: the file.
        expected: what the mapping should hold, for the error, e.g. ``keys such as workload and ranks``.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"no readable file ({error})"
        raise ConfigError([problem(str(path), "", found, "a YAML file")]) from error
    data = read_yaml(text, str(path))
    if not isinstance(data, dict):
        found = f"{shown(data)} at the top level"
        raise ConfigError([problem(str(path), "", found, f"a mapping of {expected}")])
    return data


def read_yaml(text: str, place: str) -> Any:
    """What a text holds, be it a file's or an override's.

    Raises:
        ConfigError: it is no YAML, or has a key twice.
    """
    loader = _Loader(text)
    loader.name = place
    try:
        data = loader.get_single_data()
        _extent(data, {}, ())
    except (RecursionError, _TooMuch) as error:
        found = str(error) if isinstance(error, _TooMuch) else f"more than {_MOST_LEVELS} levels"
        raise ConfigError([problem(place, "", found, "a document of a person's size")]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or "not YAML"
        raise ConfigError([problem(place + line, "", f"broken YAML ({cause})", "valid YAML")]) from error
    finally:
        loader.dispose()
    return data


def refuse_odd_values(data: Mapping[str, Any], place: str) -> None:
    """Refuse what YAML can hold and JSON cannot: dates, not-a-number, keys that are no strings.

    Raises:
        ConfigError: there is such a value.
    """
    if odd := tuple(_not_plain(data, ())):
        raise ConfigError([problem(place, ".".join(key), shown(value), _PLAIN) for key, value in odd])


def problem(place: str, key: str, found: str, expected: str) -> ConfigProblem:
    """A `ConfigProblem` without a nearest key."""
    return ConfigProblem(place=place, key=key, found=found, expected=expected)


_PLAIN = "strings, finite numbers, true, false, null, lists, and mappings with string keys"


def _not_plain(value: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
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


_MOST_LEVELS = 64
_MOST_VALUES = 100_000


class _TooMuch(Exception):
    """Aliases make more of a document than anybody wrote."""


def _extent(value: object, known: dict[int, int], above: tuple[int, ...]) -> int:
    """How many values there are, those of an alias counted at each place; raises `_TooMuch`."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) in above:
        raise _TooMuch("an alias of what it stands in")
    if len(above) >= _MOST_LEVELS:
        raise _TooMuch(f"more than {_MOST_LEVELS} levels")
    if id(value) not in known:
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_extent(item, known, (*above, id(value))) for item in items)
    if known[id(value)] > _MOST_VALUES:
        raise _TooMuch(f"more than {_MOST_VALUES} values, with those of aliases")
    return known[id(value)]


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
