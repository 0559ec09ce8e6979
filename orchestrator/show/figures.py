"""Durations, sizes, counts and moments as people read them."""

from __future__ import annotations


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


def count_text(count: int, noun: str) -> str:
    """A number of things, such as ``1 launch`` or ``2 launches``."""
    plural = "es" if noun.endswith(("ch", "s", "x")) else "ies" if noun.endswith("y") else "s"
    stem = noun[:-1] if plural == "ies" else noun
    return f"1 {noun}" if count == 1 else f"{count} {stem}{plural}"


def time_text(created: str) -> str:
    """An ISO 8601 time in UTC, down to the minute."""
    return f"{created[:16].replace('T', ' ')} UTC"
