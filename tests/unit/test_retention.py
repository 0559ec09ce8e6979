from __future__ import annotations

import pytest
import typer

from warmrank.orchestrator.store.retention import parse_duration_s, parse_size_bytes


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
