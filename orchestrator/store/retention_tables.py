"""Renders what an evict did and what is pinned, for people; fits 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from warmrank.cache_store.upkeep.evict_plan import Choice
from warmrank.cache_store.upkeep.pins import Pin, short_name
from warmrank.cache_store.upkeep.reports import EvictOutcome, EvictReport
from warmrank.orchestrator.show.figures import count_text, size_text, time_text


def render_evicted(done: EvictOutcome, *, dry_run: bool) -> RenderableType:
    """What went and what stays, place by place, then the places where nothing could be done."""
    lines = [line for report in done.reports for line in _lines(report, dry_run=dry_run)]
    faults = [Text(f"fault: {fault.location}: {fault.reason}", style="bold red") for fault in done.faults]
    return Group(*lines, *faults)


def _lines(report: EvictReport, *, dry_run: bool) -> Iterable[Text]:
    would = "would go" if dry_run else "went"
    yield Text(f"store {report.location}", style="bold")
    for choice in report.taken:
        if choice.kind == "record":
            yield Text(f"  evict  {short_name(choice.name)}: {choice.reason}", style="yellow")
    for choice in report.kept:
        yield Text(f"  keep   {short_name(choice.name)}: {choice.reason}")
    counts = ", ".join(f"{_count(report.taken, kind)} {kind}s" for kind in ("record", "manifest", "blob"))
    yield Text(f"  {counts} {would} into the trash, {size_text(report.bytes_taken)}")
    deleted = "would be deleted" if dry_run else "deleted"
    old = count_text(report.num_deleted, "old file")
    yield Text(f"  {old} {deleted} for good, {size_text(report.bytes_deleted)}")
    if report.restored:
        came = "would come" if dry_run else "came"
        yield Text(f"  {count_text(len(report.restored), 'file')} {came} back from the trash")
    yield Text(f"  {size_text(report.remaining_bytes)} remain")
    if report.over_bytes:
        over = f"  {size_text(report.over_bytes)} over --max-size: what remains is pinned, kept or too young"
        yield Text(over, style="bold yellow")
    for problem in report.problems:
        yield Text(f"problem: {problem}", style="bold yellow")


def _count(choices: Iterable[Choice], kind: str) -> int:
    return sum(choice.kind == kind for choice in choices)


def render_pins(pins: Sequence[Pin]) -> RenderableType:
    """All pins, a line for each."""
    if not pins:
        return Text("nothing is pinned")
    return Group(*(Text(_pin_line(pin)) for pin in pins))


def _pin_line(pin: Pin) -> str:
    since = f", since {time_text(pin.created)}" if pin.created else ""
    return f"{short_name(pin.record)}{since}{f': {pin.reason}' if pin.reason else ''}"
