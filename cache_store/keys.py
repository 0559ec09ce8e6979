"""Keys made of named components, and what differs between two sets of them.

Invariants: a key depends on nothing but the names and values of its components (not on their order), so a
miss can always be explained by naming the components that differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from warmrank.cache_store.canonical import canonical_json

_DIGEST = re.compile(r"[0-9a-f]{32,}", re.ASCII)
_SHOWN_CHARACTERS = 60
_SHOWN_BEFORE_DIFFERENCE = 20


def key_of(components: Mapping[str, str]) -> str:
    """Hash named components: sha256 hex of their canonical JSON.

    Raises:
        TypeError: a name or a value is no string.
    """
    for name, value in components.items():
        if not isinstance(value, str):
            raise TypeError(f"component {name!r} is a string, not {type(value).__name__}")
    return hashlib.sha256(canonical_json(dict(components))).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentChange:
    """One component that differs.

    Attributes:
        name: the component's name.
        before: its value in the stored entry; None when the entry lacks it.
        after: its value in what is asked for; None when the request lacks it.
    """

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """``torch 2.13.0 -> 2.13.1``; digests say nothing to a reader, so ``source of f changed``."""
        if self.before is None:
            return f"{self.name} added ({_shown(self.after or '')})"
        if self.after is None:
            return f"{self.name} removed (was {_shown(self.before)})"
        if _DIGEST.fullmatch(self.before) and _DIGEST.fullmatch(self.after):
            return f"{self.name} changed"
        start = max(0, _first_difference(self.before, self.after) - _SHOWN_BEFORE_DIFFERENCE)
        return f"{self.name} {_shown(self.before, start)} -> {_shown(self.after, start)}"


def changed_components(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ComponentChange, ...]:
    """List every component that differs, sorted by name."""
    return tuple(
        ComponentChange(name=name, before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def _first_difference(one: str, other: str) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _shown(value: str, start: int = 0) -> str:
    """Cut a long value down to a window from ``start``, so that the part that differs is seen."""
    if len(value) <= _SHOWN_CHARACTERS:
        return value or "(empty)"
    window = value[start : start + _SHOWN_CHARACTERS]
    head = "..." if start else ""
    tail = "..." if start + _SHOWN_CHARACTERS < len(value) else ""
    return f"{head}{window}{tail}"
