"""Figures, ranks and names as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.orchestrator.text import (
    brief_names,
    brief_ranks,
    count_text,
    runs_text,
    seconds_text,
    size_text,
    time_text,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(1, "launch"), "1 launch"),
        (count_text(2, "launch"), "2 launches"),
        (count_text(0, "blob"), "0 blobs"),
        (count_text(3, "directory"), "3 directories"),
        (count_text(3, "key"), "3 keys"),
        (seconds_text(0.0), "-"),
        (seconds_text(0.012), "12 ms"),
        (seconds_text(61.234), "61.23 s"),
        (size_text(1023), "1023 B"),
        (size_text(1536), "1.5 KiB"),
        (size_text(5 << 40), "5120.0 GiB"),
        (time_text("2026-03-04T05:06:07.890123Z"), "2026-03-04 05:06 UTC"),
        (runs_text(()), ""),
        (runs_text((2, 0, 1, 5)), "0-2, 5"),
        (runs_text(range(0, 1024, 2)), "0, 2, 4, 6, 8, 10 ... (512 in all)"),
        (brief_ranks((3,)), "rank 3"),
        (brief_names("aabbcdef"), "a, b, c, d and 2 more"),
    ],
)
def test_text_is_short(text: str, expected: str) -> None:
    assert text == expected


@given(st.sets(st.integers(0, 100_000)))
def test_text_of_ranks_is_short_whatever_they_are(ranks: set[int]) -> None:
    assert len(brief_ranks(ranks)) < 120
