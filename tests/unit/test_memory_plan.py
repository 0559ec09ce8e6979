"""Memory plans: what is needed at once does not overlap, and little is wasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.worker.devices.memory import ALIGNMENT, Lifetime, aligned, planned


def block(size_bytes: int, first: int, last: int) -> Lifetime:
    return Lifetime(size_bytes=size_bytes, first=first, last=last)


LIFETIMES = st.builds(
    lambda size, first, length: block(size, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 30),
    st.integers(0, 30),
)


def most_at_once(blocks: list[Lifetime]) -> int:
    """Bytes that are needed in the step that needs most."""
    return max(
        (
            sum(aligned(item.size_bytes) for item in blocks if item.first <= step <= item.last)
            for step in range(61)
        ),
        default=0,
    )


@given(st.lists(LIFETIMES, max_size=40))
def test_blocks_that_are_needed_in_one_step_do_not_overlap(blocks: list[Lifetime]) -> None:
    plan = planned(blocks)
    placed = list(zip(blocks, plan.offsets, strict=True))
    for position, (one, begin) in enumerate(placed):
        assert begin % ALIGNMENT == 0
        assert begin + one.size_bytes <= plan.size_bytes
        for other, start in placed[position + 1 :]:
            at_once = one.first <= other.last and other.first <= one.last
            at_once = at_once and one.size_bytes > 0 and other.size_bytes > 0  # nothing overlaps with nothing
            apart = begin + one.size_bytes <= start or start + other.size_bytes <= begin
            assert not at_once or apart


@given(st.lists(LIFETIMES, max_size=40))
def test_plan_lies_between_what_is_needed_at_once_and_what_is_needed_in_all(blocks: list[Lifetime]) -> None:
    size = planned(blocks).size_bytes
    assert most_at_once(blocks) <= size <= sum(aligned(item.size_bytes) for item in blocks)


def test_chain_of_equal_blocks_needs_two() -> None:
    blocks = [block(1000, step, step + 1) for step in range(50)]
    assert planned(blocks).size_bytes == 2 * aligned(1000)


def test_free_neighbours_make_room_for_a_larger_block() -> None:
    blocks = [block(64, 0, 1), block(64, 0, 1), block(128, 2, 3)]
    assert planned(blocks).size_bytes == 128


def test_smallest_range_that_is_large_enough_is_taken() -> None:
    blocks = [block(256, 0, 1), block(64, 0, 4), block(64, 0, 1), block(64, 0, 4), block(64, 2, 3)]
    plan = planned(blocks)
    assert plan.offsets[4] == plan.offsets[2]


@pytest.mark.parametrize(("size_bytes", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up(size_bytes: int, expected: int) -> None:
    assert aligned(size_bytes) == expected


def test_no_blocks_need_no_memory() -> None:
    assert planned([]).size_bytes == 0
