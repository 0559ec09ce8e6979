"""Counts, times and differences between sets of named components, as people read them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_DIGEST = re.compile(r"[0-9a-f]{32,}", re.ASCII)
_SHOWN_CHARACTERS = 60
_SHOWN_BEFORE_DIFFERENCE = 20
_SHOWN_CHANGES = 8


def count_text(count: int, noun: str) -> str:
    """A number of things, such as ``1 launch`` or ``2 launches``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("ey"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"


def time_text(created: str) -> str:
    """An ISO 8601 time in UTC, down to the minute."""
    return f"{created[:16].replace('T', ' ')} UTC"


class ComponentChange(NamedTuple):
    """One component that differs."""

    name: str
    before: str | None  # in the stored entry; None when it lacks the component
    after: str | None  # in what is asked for

    def __str__(self) -> str:
        """``torch 2.13.0 -> 2.13.1``; digests say nothing to a reader, so ``source of f changed``."""
        if self.before is None:
            return f"{self.name} added ({_shown(self.after or '')})"
        if self.after is None:
            return f"{self.name} removed (was {_shown(self.before)})"
        if _DIGEST.fullmatch(self.before) and _DIGEST.fullmatch(self.after):
            return f"{self.name} changed"
        common = os.path.commonprefix([self.before, self.after])  # noqa: RUF071 - by characters, as is meant
        start = max(0, len(common) - _SHOWN_BEFORE_DIFFERENCE)
        return f"{self.name} {_shown(self.before, start)} -> {_shown(self.after, start)}"


def changed_components(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ComponentChange, ...]:
    """List every component that differs, sorted by name."""
    return tuple(
        ComponentChange(name=name, before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def _shown(value: str, start: int = 0) -> str:
    """Cut a long value down to a window from ``start``, so that the part that differs is seen."""
    if len(value) <= _SHOWN_CHARACTERS:
        return value or "(empty)"
    window = value[start : start + _SHOWN_CHARACTERS]
    head = "..." if start else ""
    tail = "..." if start + _SHOWN_CHARACTERS < len(value) else ""
    return f"{head}{window}{tail}"


class Nearest(NamedTuple):
    """The stored entry with the fewest differing components, and the changes to those asked for, by name."""

    label: str
    changes: tuple[ComponentChange, ...]


def nearest(
    components: Mapping[str, str], candidates: Iterable[tuple[str, Mapping[str, str]]]
) -> Nearest | None:
    """Find the candidate with the fewest changes, of equally near ones the first; None without candidates."""
    compared = (
        Nearest(label=label, changes=changed_components(stored, components)) for label, stored in candidates
    )
    return min(compared, key=lambda found: len(found.changes), default=None)


def explain_miss(components: Mapping[str, str], candidates: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """One line that names what differs from the nearest candidate."""
    found = nearest(components, candidates)
    if found is None:
        return "nothing comparable is stored"
    if not found.changes:
        return f"same components as {found.label}"
    shown = [str(change) for change in found.changes[:_SHOWN_CHANGES]]
    more = len(found.changes) - len(shown)
    return f"nearest is {found.label}: {'; '.join([*shown, *([f'and {more} more'] if more else [])])}"
