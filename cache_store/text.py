"""Counts, times, sizes, ranks, names, and differences between sets of named components, as people read them.

Invariant: the text of many ranks or names has a bound that does not grow with their number.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_RUNS = 6  # runs of neighbouring ranks that a text names before it counts the others
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


def seconds_text(seconds: float) -> str:
    """A duration in three digits or so; a dash for none."""
    if seconds == 0:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def size_text(size_bytes: int) -> str:
    """A size with the unit that keeps it short."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def ended_text(status: int) -> str:
    """The end of a process by its status as `subprocess` has it, such as ``was killed by SIGKILL``."""
    if status >= 0:
        return f"ended with status {status}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"


def defused(text: str, *, instead: str = "?") -> str:
    """``text`` without characters that are not printable; line feeds and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else instead for char in text)


def runs_text(ranks: Iterable[int], *, max_runs: int = MAX_RUNS) -> str:
    """Ranks without the noun, such as ``0-7, 9``; many runs end in a number, ``0, 2 ... (512 in all)``."""
    ordered = sorted(set(ranks))
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:max_runs])
    return shown if len(runs) <= max_runs else f"{shown} ... ({len(ordered):,} in all)"


def brief_ranks(ranks: Iterable[int], *, max_runs: int = MAX_RUNS) -> str:
    """Ranks for people, bounded in length: ``rank 3``, ``ranks 0-7, 9``."""
    ordered = sorted(set(ranks))
    return f"rank{'' if len(ordered) == 1 else 's'} {runs_text(ordered, max_runs=max_runs)}"


def brief_names(names: Iterable[str], *, max_names: int = 4) -> str:
    """Names for people, each once, bounded in number: ``a, b and 3 more``."""
    every = list(dict.fromkeys(names))
    more = len(every) - max_names
    return ", ".join(every[:max_names]) + (f" and {more:,} more" if more > 0 else "")


def first_lines(lines: Iterable[str], *, max_lines: int, what: str = "more") -> list[str]:
    """The first few lines, and the number of the others: ``and 3 more``."""
    every = list(lines)
    more = len(every) - max_lines
    return [*every[:max_lines], *([f"and {more:,} {what}"] if more > 0 else [])]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


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
