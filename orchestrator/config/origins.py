"""Where each value of a resolved config is from: a line of the file, an override, or the default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from warmrank.orchestrator.config.models import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One value of a resolved config.

    Attributes:
        key: dotted path; of a store in short as it is written in full.
        value: plain data.
        source: ``FILE:LINE``, ``--set KEY=VALUE``, ``file name`` or ``default``.
    """

    key: str
    value: Any
    source: str


def origins(config: Config, path: Path, overrides: tuple[str, ...]) -> tuple[Origin, ...]:
    """Every value of a config that was read from ``path``, and where it is from."""
    lines = key_lines(path.read_text(encoding="utf-8"))
    values = dict(leaves(as_plain(config)))
    return tuple(
        Origin(key=key, value=value, source=_source(key, path, lines, overrides))
        for key, value in values.items()
    )


def as_plain(config: Config) -> dict[str, Any]:
    """A config as plain data, in the order of its keys."""
    return config.model_dump(mode="json")


def leaves(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The values that stand in no mapping or list of mappings; an empty one is a value."""
    if isinstance(data, Mapping) and data:
        for name, item in data.items():
            yield from leaves(item, (*path, str(name)))
    elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
        for index, item in enumerate(data):
            yield from leaves(item, (*path, str(index)))
    else:
        yield ".".join(path), data


def key_lines(text: str) -> dict[str, int]:
    """The line that each key of a YAML text stands in, by its dotted path."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return dict(_lines(root, ())) if root is not None else {}


def _lines(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            yield ".".join(below), key.start_mark.line + 1
            yield from _lines(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            below = (*path, str(index))
            yield ".".join(below), value.start_mark.line + 1
            yield from _lines(value, below)


def _source(key: str, path: Path, lines: Mapping[str, int], overrides: tuple[str, ...]) -> str:
    written = _as_written(key, lines, overrides)
    for override in reversed(overrides):
        name = override.partition("=")[0]
        if any(each == name or each.startswith(f"{name}.") for each in written):
            return f"--set {override}"
    line = next((lines[each] for each in written if each in lines), None)
    if line is not None:
        return f"{path}:{line}"
    return "file name" if key == "name" else "default"


def _as_written(key: str, lines: Mapping[str, int], overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The keys under which it may be written: of a store of one place in short too."""
    short = "store.tiers.0."
    if not key.startswith(short) or "store.tiers" in lines:
        return (key,)
    if any(override.startswith("store.tiers") for override in overrides):
        return (key,)
    return (f"store.{key.removeprefix(short)}",)
