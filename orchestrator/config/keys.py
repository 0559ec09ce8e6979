"""Every key of a model, read off the model itself: for the reference, and for shells that complete.

A key below a mapping of names has ``NAME`` in its path, and one below a list ``0``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_PLAIN = {str: "string", int: "whole number", float: "number", bool: "`true` or `false`", Path: "path"}
_BOUNDS = (
    (annotated_types.Ge, "ge", "from"),
    (annotated_types.Gt, "gt", "above"),
    (annotated_types.Le, "le", "to"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a model.

    Attributes:
        path: from the top of the file.
        kind: its type, for people.
        default: what it is where nothing is said; empty where something must be said.
        description: what it means.
        choices: all values that it may have, as YAML, where there are few.
        is_section: whether keys of its own stand below it.
    """

    path: tuple[str, ...]
    kind: str
    default: str
    description: str
    choices: tuple[str, ...]
    is_section: bool

    @property
    def dotted(self) -> str:
        """As ``--set`` takes it."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The keys of one model at one place."""

    path: tuple[str, ...]
    model: type[BaseModel]
    keys: tuple[Key, ...]


def sections(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Section]:
    """The sections of a model, each before those below it."""
    keys = tuple(_key(path, name, field) for name, field in model.model_fields.items())
    yield Section(path=path, model=model, keys=keys)
    for name, field in model.model_fields.items():
        for below, part in _models(field.annotation):
            yield from sections(part, (*path, name, *below))


def _key(path: tuple[str, ...], name: str, field: FieldInfo) -> Key:
    has_models = any(True for _ in _models(field.annotation))
    return Key(
        path=(*path, name),
        kind=_kind(field.annotation, field.metadata),
        default=_default(field),
        description=field.description or "",
        choices=_choices(field.annotation),
        is_section=has_models,
    )


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, else the annotation alone; without what is annotated to them."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(part for member in get_args(annotation) for part in _parts(member))
    return (annotation,)


def _models(annotation: Any) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """The models in an annotation, each with what stands in a path between the key and its own keys."""
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield (), part
        elif get_origin(part) is tuple:
            yield from (((("0"), *below), model) for below, model in _models(get_args(part)[0]))
        elif get_origin(part) is dict:
            yield from ((("NAME", *below), model) for below, model in _models(get_args(part)[1]))


def _kind(annotation: Any, metadata: list[Any]) -> str:
    words = []
    for part in _parts(annotation):
        origin = get_origin(part)
        if part is type(None):
            words.append("`null`")
        elif origin is Literal:
            words.append(", ".join(f"`{choice}`" for choice in get_args(part)))
        elif origin is tuple:
            words.append(f"list of {_plural(_kind(get_args(part)[0], []))}")
        elif origin is dict or (isinstance(part, type) and issubclass(part, BaseModel)):
            words.append("mapping")
        else:
            words.append(_PLAIN.get(part, "any") + _bounds(annotation, metadata))
    return " or ".join(dict.fromkeys(words))


def _plural(kind: str) -> str:
    return "strings" if kind == "string" else "mappings" if kind == "mapping" else kind


def _bounds(annotation: Any, metadata: list[Any]) -> str:
    """The bounds of a number, that stand beside the field or in the type's own annotation."""
    inner = [item for item in get_args(annotation)[1:] if not isinstance(item, type)]
    given = [*metadata, *(part for item in inner for part in getattr(item, "metadata", [item]))]
    found = [
        f"{word} {getattr(item, name):g}"
        for item in given
        for kind, name, word in _BOUNDS
        if isinstance(item, kind)
    ]
    return f" {' '.join(found)}" if found else ""


def _choices(annotation: Any) -> tuple[str, ...]:
    found: list[str] = []
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            found += map(str, get_args(part))
        elif part is bool:
            found += ["true", "false"]
        elif part is type(None):
            found.append("null")
    return () if found == ["null"] else tuple(found)


def _default(field: FieldInfo) -> str:
    """The default as it would be written in YAML; a mapping's that has keys of its own stands with those."""
    value = field.default
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(repr, value))}]".replace("'", '"')
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'
