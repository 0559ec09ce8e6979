from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console, RenderableType

from warmrank.cache_store.gc.evict import EvictOutcome, EvictReport, PlaceFault
from warmrank.cache_store.gc.evict_plan import Choice
from warmrank.cache_store.gc.pins import Pin
from warmrank.orchestrator.store.retention import parse_duration_s, parse_size_bytes
from warmrank.orchestrator.ui.table import render_evicted, render_pins

RECORD = f"launch/ab/{'ab' * 32}/{'cd' * 32}"
OTHER = f"dir/12/{'12' * 32}/{'34' * 32}"


def choice(name: str = RECORD, kind: str = "record", stored_bytes: int = 1024) -> Choice:
    return Choice(kind=kind, name=name, stored_bytes=stored_bytes, reason="unused for 40.0 d")  # type: ignore[arg-type]


def report(**changes: object) -> EvictReport:
    values: dict[str, object] = {
        "location": "/store [a]",
        "taken": (choice(), choice("ac/x", "manifest"), choice("cas/x", "blob"), choice("cas/y", "blob")),
        "kept": (choice(OTHER),),
        "restored": (),
        "bytes_taken": 4096,
        "num_deleted": 7,
        "bytes_deleted": 2048,
        "remaining_bytes": 1024,
        "over_bytes": 0,
        "problems": (),
    }
    return EvictReport(**{**values, **changes})  # type: ignore[arg-type]


def text_of(renderable: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=100).print(renderable)
    return file.getvalue()


def evicted(*reports: EvictReport, dry_run: bool = False, faults: tuple[PlaceFault, ...] = ()) -> str:
    return text_of(render_evicted(EvictOutcome(reports=reports, faults=faults), dry_run=dry_run))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2592000.0), ("12h", 43200.0), ("90min", 5400.0), ("1.5s", 1.5), ("2w", 1209600.0), ("0s", 0.0)],
)
def test_duration(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "30 d", "1m", "1.d", "1e3s", "\u0663d", "30d\n"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(typer.BadParameter, match="30d"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500GiB", 500 << 30),
        ("2TB", 2 * 10**12),
        ("1.5 MiB", 3 << 19),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("7B", 7),
        ("0B", 0),
    ],
)
def test_size(text, size):
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "500", "GiB", "-1GiB", "1KB", "1kiB", "1G", "1  GiB", "1PiB", "1gib"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(typer.BadParameter, match="500GiB"):
        parse_size_bytes(text)


def test_evicted_says_what_went_what_stays_and_how_much():
    lines = evicted(report()).splitlines()
    assert lines == [
        "store /store [a]",
        f"  evict  launch {'ab' * 6} {'cd' * 6}: unused for 40.0 d",
        f"  keep   dir {'12' * 6} {'34' * 6}: unused for 40.0 d",
        "  1 records, 1 manifests, 2 blobs went into the trash, 4.0 KiB",
        "  7 old files deleted for good, 2.0 KiB",
        "  1.0 KiB remain",
    ]


def test_what_is_over_the_limit_and_what_is_missing_is_said():
    text = evicted(report(over_bytes=3072, problems=("cas/q is needed, and nowhere",), restored=("cas/z",)))
    assert "3.0 KiB over --max-size" in text
    assert "problem: cas/q is needed" in text
    assert "1 file came back from the trash" in text


def test_places_stand_apart_and_faults_at_the_end():
    fault = PlaceFault(location="s3://b", reason="it refused [all]")
    lines = evicted(report(location="one"), report(location="two"), faults=(fault,)).splitlines()
    assert [line for line in lines if line.startswith("store ")] == ["store one", "store two"]
    assert lines[-1] == "fault: s3://b: it refused [all]"


def test_pins_are_listed_with_time_and_reason():
    pins = (
        Pin(record=RECORD, reason="release [4]", created="2026-01-31T12:00:00.000000+00:00"),
        Pin(record=OTHER, reason="", created=""),
    )
    assert text_of(render_pins(pins)).splitlines() == [
        f"launch {'ab' * 6} {'cd' * 6}, since 2026-01-31 12:00 UTC: release [4]",
        f"dir {'12' * 6} {'34' * 6}",
    ]
