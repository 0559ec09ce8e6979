"""Memory reuse of captured graphs on the CPU: modes one, two and three, and what must survive them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import warmrank
from tests.support.devices import warm
from warmrank.worker.devices import CpuBackend, tensor_in
from warmrank.worker.devices.cpu_graph import ALIGNMENT, Lifetime, Segment, planned
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.runtime.runner import CaptureOptions, GraphRunner

pytestmark = pytest.mark.usefixtures("no_grad")

Graph = Callable[..., tuple[Any, ...]]
LARGE, SMALL = 4096, 1024
NAN = float("nan")


def runner(graph: Graph, *classes: str, aliased: tuple[int, ...] = (), **options: Any) -> GraphRunner:
    facts = GraphFacts(input_classes=classes, num_outputs=1, aliased_outputs=aliased)
    return GraphRunner(graph, facts, CpuBackend(), CaptureOptions(**options))


def step(x: torch.Tensor) -> tuple[Any, ...]:
    y = x * 2
    z = y + 1
    return (z * 1.0,)


def numbers(size: int) -> torch.Tensor:
    return torch.arange(float(size))


def runner_of(*sizes: int, **options: Any) -> GraphRunner:
    """A runner of `step` that captures at the next call of each of these sizes."""
    run = runner(step, "user", **options)
    for size in sizes:
        warm(run, numbers(size))
    return run


def poison(run: GraphRunner) -> None:
    """Overwrite all that the pool holds and that is not read again before it is written."""
    for entry in run._captured().entries.values():
        for output in entry.captured.outputs:
            output.fill_(NAN)
        for index in run.layout.copied:
            entry.captured.inputs[index].fill_(NAN)


POOLS: dict[str, Callable[[], dict[str, Any]]] = {
    "mode one": lambda: {"pool": warmrank.graph_pool_handle("cpu")},
    "mode two": dict,
    "neither": lambda: {"pool_for_each_shape": True},
}
CLONES = {"cloned": {}, "not cloned": {"clone_input": False}}


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest) -> dict[str, Any]:
    return POOLS[request.param]()


# What is saved.


def test_shapes_of_one_function_share_a_pool() -> None:
    run = runner_of(LARGE, SMALL)
    for size in (LARGE, SMALL):
        run(numbers(size))
    (held,) = run.statistics.pools
    assert held.num_graphs == 2
    assert held.saved_bytes >= SMALL * 4


def test_without_mode_two_each_shape_has_a_pool_of_its_own() -> None:
    run = runner_of(LARGE, SMALL, pool_for_each_shape=True)
    kept = run(numbers(LARGE))[0]
    run(numbers(SMALL) * NAN)
    assert torch.equal(kept, numbers(LARGE) * 2 + 1)
    assert [held.num_graphs for held in run.statistics.pools] == [1, 1]
    assert run.statistics.saved_bytes == 0


def test_functions_with_one_handle_share_a_pool() -> None:
    handle = warmrank.graph_pool_handle("cpu")
    first, second = runner_of(LARGE, pool=handle), runner_of(LARGE, pool=handle)
    kept = first(numbers(LARGE))[0]
    second(numbers(LARGE) * 5)
    assert torch.equal(kept, numbers(LARGE) * 10 + 1)
    assert first.statistics.pools == second.statistics.pools
    assert first.statistics.pools[0].num_graphs == 2


# Inputs that lie in the pool.


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
def test_output_fed_back_as_input_is_read_correctly(pool: dict[str, Any], clone: dict[str, Any]) -> None:
    run = runner_of(8, **pool, **clone)
    x = numbers(8)
    expected = x
    for _ in range(6):
        (x,) = run(x)
        (expected,) = step(expected)
        assert torch.equal(x, expected)


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
def test_output_of_another_shape_fed_in_is_read_correctly(pool, clone):
    run = runner_of(4, 8, **pool, **clone)
    run(numbers(4))
    for _ in range(2):
        (large,) = run(numbers(8))
        assert torch.equal(run(large[:4])[0], (numbers(4) * 2 + 1) * 2 + 1)


def test_input_in_the_pool_that_is_not_copied_is_not_overwritten_by_its_own_graph() -> None:
    def twice(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        cache.add_(1.0)
        y = x * 3
        return ((y + cache) * 1.0,)

    handle = warmrank.graph_pool_handle("cpu")
    first = runner_of(8, pool=handle)
    second = warm(runner(twice, "mutated", "user", pool=handle), numbers(8), numbers(8))
    (cache,) = first(numbers(8))
    for number in range(1, 4):
        result = second(cache, numbers(8))[0]
        assert torch.equal(cache, numbers(8) * 2 + 1 + number)
        assert torch.equal(result, numbers(8) * 3 + cache)


def test_replay_reads_nothing_that_it_did_not_write(pool: dict[str, Any]) -> None:
    run = runner_of(8, 4, **pool)
    for size in (8, 4):
        run(numbers(size))
    for size in (4, 8, 4):
        x = numbers(size) + size
        poison(run)
        assert torch.equal(run(x)[0], x * 2 + 1)


def test_two_inputs_from_the_pool_do_not_overwrite_each_other(pool: dict[str, Any]) -> None:
    def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        return x * 2 + y, y * 2 + x

    run = warm(runner(mixed, "user", "user", **pool), numbers(8), numbers(8))
    x, y = numbers(8), numbers(8) + 1
    for _ in range(4):
        expected = mixed(x.clone(), y.clone())
        y, x = run(x, y)
        assert torch.equal(y, expected[0])
        assert torch.equal(x, expected[1])


def test_threads_of_two_functions_with_one_pool_do_not_mix() -> None:
    handle = warmrank.graph_pool_handle("cpu")
    runs = [runner(step, "user", pool=handle, clone_output=True) for _ in range(2)]

    def call(value: int) -> bool:
        with torch.no_grad():
            x = torch.full((256,), float(value))
            return torch.equal(runs[value % 2](x)[0], x * 2 + 1)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(400)))


# Handles.


def test_tensor_in_a_block_keeps_its_memory_when_the_segment_is_gone() -> None:
    segment = Segment(1 << 16)
    tensor = tensor_in(segment.block(0, 1 << 16), 0, (1 << 14,), (1,), torch.float32).fill_(3.0)
    del segment
    gc.collect()
    others = [torch.zeros(1 << 14) for _ in range(8)]
    assert tensor.eq(3.0).all()
    assert not any(other.any() for other in others)


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
    offsets, size_bytes = planned(blocks)
    placed = list(zip(blocks, offsets, strict=True))
    for position, (one, begin) in enumerate(placed):
        assert begin % ALIGNMENT == 0
        assert begin + one.size_bytes <= size_bytes
        for other, start in placed[position + 1 :]:
            at_once = one.first <= other.last and other.first <= one.last
            at_once = at_once and one.size_bytes > 0 and other.size_bytes > 0  # nothing overlaps with nothing
            apart = begin + one.size_bytes <= start or start + other.size_bytes <= begin
            assert not at_once or apart
