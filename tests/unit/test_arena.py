"""Segments, regions and pools: who shares memory, who must not, and how long it lives."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from warmrank.worker.devices.memory import ArenaPool, Pools, Region, Segment, buffers, new_handle, tensor_in


def test_segment_that_is_large_enough_is_taken_again() -> None:
    region = Region()
    assert region.segment(100, ()) is region.segment(60, ())


def test_larger_need_takes_a_new_segment_and_keeps_the_old_one_for_its_graphs() -> None:
    region = Region()
    small = region.segment(100, ())
    large = region.segment(200, ())
    assert large is not small
    assert region.segment(50, ()) is large
    assert region.size_bytes == 300


def test_segment_that_no_graph_holds_goes_when_there_is_a_larger_one() -> None:
    region = Region()
    region.segment(100, ())
    region.segment(200, ())
    gc.collect()
    assert region.size_bytes == 200


def test_largest_segment_stays_without_graphs() -> None:
    region = Region()
    region.segment(100, ())
    gc.collect()
    assert region.size_bytes == 100


def test_segment_with_a_given_tensor_in_it_is_not_taken() -> None:
    region = Region()
    first = region.segment(128, ())
    inside = tensor_in(first.block(64, 64), 0, (4,), (1,), torch.float32)
    assert region.segment(128, (inside,)) is not first
    assert region.segment(128, (inside[2:],)) is not first
    assert region.segment(128, (torch.ones(4),)) is first


def test_blocks_of_one_segment_are_storages_of_their_own() -> None:
    segment = Segment(128)
    one, other = segment.block(0, 64), segment.block(64, 32)
    assert (one.nbytes(), other.nbytes()) == (64, 32)
    assert other.data_ptr() - one.data_ptr() == 64


def test_tensor_in_a_block_keeps_its_memory_when_the_segment_is_gone() -> None:
    segment = Segment(1 << 16)
    tensor = tensor_in(segment.block(0, 1 << 16), 0, (1 << 14,), (1,), torch.float32).fill_(3.0)
    del segment
    gc.collect()
    others = [torch.zeros(1 << 14) for _ in range(8)]
    assert tensor.eq(3.0).all()
    assert not any(other.any() for other in others)


def test_buffers_lie_apart_and_aligned() -> None:
    inputs = [torch.ones(3), 7, torch.arange(5), torch.ones(1)]
    made = buffers(ArenaPool(), inputs, frozenset({0, 2, 3}))
    addresses = [made.values[index].data_ptr() for index in (0, 2, 3)]
    assert [address % 64 for address in addresses] == [0, 0, 0]
    assert made.size_bytes == 192
    for index in (0, 2, 3):
        assert torch.equal(made.values[index], inputs[index])  # type: ignore[arg-type]
    assert made.values[1] == 7


@pytest.mark.parametrize(
    "value",
    [torch.arange(12.0)[::2], torch.arange(3.0).expand(2, 3), torch.arange(6.0).reshape(2, 3).t()],
    ids=["gaps", "overlap", "transposed"],
)
def test_buffer_spans_the_memory_that_the_strides_need(value: torch.Tensor) -> None:
    made = buffers(ArenaPool(), [value], frozenset({0}))
    assert made.values[0].stride() == value.stride()
    assert torch.equal(made.values[0], value)


def test_buffers_never_lie_where_an_input_lies() -> None:
    pool = ArenaPool()
    first = buffers(pool, [torch.ones(4)], frozenset({0}))
    second = buffers(pool, [first.values[0] * 0, first.values[0]], frozenset({0, 1}))
    assert torch.equal(first.values[0], torch.ones(4))
    assert second.segment is not first.segment


def test_handles_of_one_process_are_all_different() -> None:
    with ThreadPoolExecutor(4) as threads:
        handles = list(threads.map(lambda _: new_handle(), range(200)))
    assert len(set(handles)) == 200


def test_threads_that_ask_with_one_handle_get_one_pool() -> None:
    pools = Pools()
    handle = new_handle()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: pools.pool(handle), range(200)))
    assert len({id(pool) for pool in found}) == 1
