"""Memory of captured graphs on the CPU: plans of blocks, segments, pools."""

from __future__ import annotations

import gc

import torch
from hypothesis import given
from hypothesis import strategies as st

from warmrank.worker.devices.memory import (
    ALIGNMENT,
    ArenaPool,
    Lifetime,
    Segment,
    buffers,
    planned,
    tensor_in,
)


def test_tensor_in_a_block_keeps_its_memory_when_the_segment_is_gone() -> None:
    segment = Segment(1 << 16)
    tensor = tensor_in(segment.block(0, 1 << 16), 0, (1 << 14,), (1,), torch.float32).fill_(3.0)
    del segment
    gc.collect()
    others = [torch.zeros(1 << 14) for _ in range(8)]
    assert tensor.eq(3.0).all()
    assert not any(other.any() for other in others)


def test_buffers_never_lie_where_an_input_lies() -> None:
    pool = ArenaPool()
    first = buffers(pool, [torch.ones(4)], frozenset({0}))
    second = buffers(pool, [first.values[0] * 0, first.values[0]], frozenset({0, 1}))
    assert torch.equal(first.values[0], torch.ones(4))
    assert second.segment is not first.segment


def block(size_bytes: int, first: int, last: int) -> Lifetime:
    return Lifetime(size_bytes=size_bytes, first=first, last=last)


LIFETIMES = st.builds(
    lambda size, first, length: block(size, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 30),
    st.integers(0, 30),
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
