"""Figures as people read them."""

from __future__ import annotations

import pytest

from warmrank.orchestrator.show.figures import count_text, seconds_text, size_text, time_text


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (1, "launch", "1 launch"),
        (2, "launch", "2 launches"),
        (0, "blob", "0 blobs"),
        (3, "directory", "3 directories"),
    ],
)
def test_number_of_things(count: int, noun: str, expected: str) -> None:
    assert count_text(count, noun) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "-"), (0.0004, "0 ms"), (0.012, "12 ms"), (0.1, "0.10 s"), (61.234, "61.23 s")],
)
def test_seconds_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes_have_a_fitting_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_moment_is_told_to_the_minute() -> None:
    assert time_text("2026-03-04T05:06:07.890123Z") == "2026-03-04 05:06 UTC"
