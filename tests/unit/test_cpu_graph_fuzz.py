"""Random graphs, captured in one pool, give eager's bits, whatever lay in the pool's memory before."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from tests.support.random_graphs import RandomGraph
from warmrank.worker.devices import CapturedGraph
from warmrank.worker.devices.cpu import CpuBackend

pytestmark = pytest.mark.usefixtures("no_grad")

GRAPHS = 4
_MEMORY = 1 << 14  # elements; more than any of the graphs needs


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than these small tensors, on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether layouts and all bits are equal; unlike ``torch.equal``, also those of zeros and NaN."""
    one, other = (
        value.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
        for value in (ours, theirs)
    )
    layouts = [(value.dtype, value.shape, value.stride()) for value in (ours, theirs)]
    return layouts[0] == layouts[1] and torch.equal(one, other)


def capture_poison(pool: object) -> CapturedGraph:
    """A graph larger than all others, so that they lie in its memory, which its replay fills with NaN."""
    return CpuBackend().capture(
        lambda x: (x + float("nan"),),
        [torch.ones(_MEMORY)],
        copied=frozenset({0}),
        aliased=frozenset(),
        pool=pool,  # type: ignore[arg-type]
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_of_one_pool_equal_eager(seed: int) -> None:
    backend = CpuBackend()
    pool = backend.pool()
    poison = capture_poison(pool)
    size = pool.size_bytes
    graphs = [RandomGraph(seed * GRAPHS + number) for number in range(GRAPHS)]
    inputs = [graph.inputs(1) for graph in graphs]
    captured = []
    for graph, (x, weight, cache) in zip(graphs, inputs, strict=True):
        made = backend.capture(
            graph, (x, weight, cache), copied=frozenset({0}), aliased=frozenset(), pool=pool
        )
        captured.append(made)
    assert pool.size_bytes == size
    order = random.Random(seed)
    for step in range(2 * GRAPHS):
        number = order.randrange(GRAPHS)
        x, weight, cache = graphs[number].inputs(100 + step)
        poison.inputs[0].fill_(float("nan"))
        poison.replay()
        captured[number].inputs[0].copy_(x)
        inputs[number][1].copy_(weight)
        inputs[number][2].copy_(cache)
        captured[number].replay()
        expected = graphs[number](x, weight, cache)
        assert all(map(same_bits, captured[number].outputs, expected))
        assert same_bits(inputs[number][2], cache)
