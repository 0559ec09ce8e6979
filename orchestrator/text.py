"""Durations, sizes, counts, moments, ranks and names as people read them, equal things together; pure.

Invariant: the text of many ranks or names has a bound that does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from warmrank.cache_store.text import count_text, time_text

__all__ = [
    "brief_names",
    "brief_ranks",
    "count_text",
    "defused",
    "first_lines",
    "grouped",
    "runs_text",
    "seconds_text",
    "size_text",
    "time_text",
]

K = TypeVar("K")
V = TypeVar("V")

MAX_RUNS = 6  # runs of neighbouring ranks that a text names before it counts the others


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
