"""Why a look-up missed: the stored entry that comes nearest, and the named components in which it differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warmrank.cache_store.keys import ComponentChange, changed_components

_SHOWN_CHANGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The stored entry with the fewest differing components.

    Attributes:
        label: what to call it.
        changes: from its components to those asked for, sorted by name; empty when they are equal.
    """

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
