"""What every device backend must keep: fixed addresses, real overwriting, pools that graphs share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.devices import BACKENDS, STAND_IN, make_backend, make_device
from warmrank.worker.devices import CapturedGraph
from warmrank.worker.devices.port import DeviceBackend, Pool

pytestmark = pytest.mark.usefixtures("no_grad")

Graph = Callable[..., tuple[Any, ...]]


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def backend(kind: str) -> DeviceBackend:
    return make_backend(kind)


@pytest.fixture
def device(kind: str, backend: DeviceBackend) -> torch.device:
    return make_device(kind, backend)


def capture(
    backend: DeviceBackend,
    graph: Graph,
    *inputs: Any,
    copied: tuple[int, ...] = (),
    aliased: tuple[int, ...] = (),
    pool: Pool | None = None,
) -> CapturedGraph:
    return backend.capture(
        graph,
        inputs,
        copied=frozenset(copied),
        aliased=frozenset(aliased),
        pool=backend.pool() if pool is None else pool,
    )


def doubled(x: torch.Tensor) -> tuple[Any, ...]:
    return (x * 2,)


def chain(x: torch.Tensor) -> tuple[Any, ...]:
    y = x + 1
    z = y.t() * y.t()
    return (z.sum(0), z[1:].clone())


def test_replay_computes_from_what_a_fixed_input_or_a_buffer_now_holds(backend, device):
    x = torch.arange(6.0, device=device).reshape(2, 3)
    fixed, copied = capture(backend, chain, x), capture(backend, chain, x, copied=(0,))
    x.mul_(10.0)
    copied.inputs[0].copy_(x)
    for captured in (fixed, copied):
        captured.replay()
        for ours, eager in zip(captured.outputs, chain(x), strict=True):
            assert torch.equal(ours, eager)


def test_replay_writes_to_a_mutated_input_each_time(backend: DeviceBackend, device: torch.device) -> None:
    cache = torch.zeros(2, device=device)
    captured = capture(backend, lambda cache: (cache.add_(1.0) * 2,), cache)
    cache.zero_()
    for _ in range(3):
        captured.replay()
    assert cache.tolist() == [3.0, 3.0]
    assert captured.outputs[0].tolist() == [6.0, 6.0]


def test_output_inside_a_fixed_input_shares_its_memory(backend: DeviceBackend, device: torch.device) -> None:
    cache = torch.zeros(4, device=device)
    captured = capture(backend, lambda cache: (cache.add_(1.0)[1:3], cache * 1), cache, aliased=(0,))
    cache.zero_()
    captured.replay()
    assert captured.outputs[0].data_ptr() == cache[1:].data_ptr()
    assert captured.outputs[0].tolist() == [1.0, 1.0]


def test_outputs_that_share_memory_are_all_right(backend: DeviceBackend, device: torch.device) -> None:
    def both(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 2
        return y, y[1:], y

    captured = capture(backend, both, torch.ones(3, device=device), copied=(0,))
    captured.inputs[0].copy_(torch.tensor([1.0, 2.0, 3.0]))
    captured.replay()
    assert [value.tolist() for value in captured.outputs] == [[2.0, 4.0, 6.0], [4.0, 6.0], [2.0, 4.0, 6.0]]


def test_one_tensor_given_twice_has_two_buffers(backend: DeviceBackend, device: torch.device) -> None:
    x = torch.ones(2, device=device)
    captured = capture(backend, lambda a, b: (a - b,), x, x, copied=(0, 1))
    captured.inputs[0].fill_(5.0)
    captured.inputs[1].fill_(3.0)
    captured.replay()
    assert captured.outputs[0].tolist() == [2.0, 2.0]


def test_capture_keeps_the_values_of_inputs_that_lie_in_its_pool(backend, device):
    pool = backend.pool()
    first = capture(backend, doubled, torch.ones(64, device=device), copied=(0,), pool=pool)
    first.replay()
    (output,) = first.outputs
    capture(backend, chain, output.view(8, 8), copied=(0,), pool=pool)
    capture(backend, chain, output.view(8, 8), pool=pool)
    assert torch.equal(output, torch.full((64,), 2.0, device=device))


def test_replay_overwrites_outputs_of_other_graphs_of_its_pool(backend, device):
    pool = backend.pool()
    one = capture(backend, doubled, torch.ones(256, device=device), copied=(0,), pool=pool)
    other = capture(backend, doubled, torch.ones(256, device=device) * 4, copied=(0,), pool=pool)
    one.inputs[0].fill_(1.0)
    one.replay()
    assert one.outputs[0].data_ptr() == other.outputs[0].data_ptr()
    other.inputs[0].fill_(4.0)
    other.replay()
    assert one.outputs[0][0].item() == 8.0


def test_graphs_of_a_pool_are_right_in_any_order(backend: DeviceBackend, device: torch.device) -> None:
    pool = backend.pool()
    inputs = [torch.arange(float(size * 8), device=device).reshape(size, 8) for size in (8, 4, 2)]
    graphs = [capture(backend, chain, x, copied=(0,), pool=pool) for x in inputs]
    for number in (0, 1, 2, 1, 0, 2, 2, 0):
        x = inputs[number] + number
        graphs[number].inputs[0].copy_(x)
        graphs[number].replay()
        for ours, eager in zip(graphs[number].outputs, chain(x), strict=True):
            assert torch.equal(ours, eager)


def test_output_of_one_graph_fills_the_buffer_of_another(backend, device):
    pool = backend.pool()
    x = torch.arange(64.0, device=device).reshape(8, 8)
    one = capture(backend, doubled, x, copied=(0,), pool=pool)
    other = capture(backend, doubled, x, copied=(0,), pool=pool)
    one.inputs[0].copy_(x)
    one.replay()
    other.inputs[0].copy_(one.outputs[0])
    other.replay()
    assert torch.equal(other.outputs[0], x * 4)


def test_fixed_input_that_lies_in_the_pool_is_not_overwritten(backend, device):
    pool = backend.pool()
    first = capture(backend, doubled, torch.ones(8, 8, device=device), copied=(0,), pool=pool)
    first.replay()
    (fixed,) = first.outputs
    second = capture(backend, chain, fixed, pool=pool)
    for _ in range(2):
        second.replay()
    assert torch.equal(fixed, torch.full((8, 8), 2.0, device=device))
    assert torch.equal(second.outputs[0], chain(fixed)[0])


def test_largest_graph_first_leaves_room_for_all_others(backend: DeviceBackend, device: torch.device) -> None:
    def layers(x: torch.Tensor) -> tuple[Any, ...]:
        for _ in range(3):
            x = torch.tanh(x @ x.t()) @ x + x
        return (x, x.sum())

    pool = backend.pool()
    sizes: list[int] = []
    kept = []
    for gear in range(16, 0, -1):
        x = torch.ones(gear * 16, 64, device=device)
        kept.append(capture(backend, layers, x, copied=(0,), pool=pool))
        sizes.append(pool.size_bytes)
    assert sizes[-1] <= 1.1 * sizes[0]
    assert max(graph.size_bytes for graph in kept) == kept[0].size_bytes


def test_pool_grows_for_a_larger_graph_and_the_smaller_one_stays_right(backend, device):
    pool = backend.pool()
    small = capture(backend, doubled, torch.ones(4, device=device), copied=(0,), pool=pool)
    before = pool.size_bytes
    large = capture(backend, doubled, torch.ones(1 << 22, device=device), copied=(0,), pool=pool)
    assert pool.size_bytes > before
    large.replay()
    small.replay()
    assert small.outputs[0].tolist() == [2.0] * 4
    assert large.outputs[0][-1].item() == 2.0


def test_pool_with_a_handle_is_the_same_for_all(kind: str, backend: DeviceBackend) -> None:
    handle = backend.new_handle()
    pool = backend.pool(handle)
    assert backend.pool(handle) is pool
    if kind != STAND_IN:  # of which each test makes its own
        assert make_backend(kind).pool(handle) is pool


def test_pool_goes_when_nobody_holds_it(backend: DeviceBackend, device: torch.device) -> None:
    handle = backend.new_handle()
    pool = backend.pool(handle)
    captured = capture(backend, doubled, torch.ones(4, device=device), copied=(0,), pool=pool)
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is not None
    del captured
    gc.collect()
    assert gone() is None


def test_output_outlives_graph_and_pool(backend: DeviceBackend, device: torch.device) -> None:
    captured = capture(backend, doubled, torch.ones(1024, device=device), copied=(0,))
    captured.replay()
    (output,) = captured.outputs
    del captured
    gc.collect()
    others = [torch.zeros(1024, device=device) for _ in range(8)]
    assert output.sum().item() == 2048.0
    assert all(other.sum().item() == 0.0 for other in others)


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("then", [torch.inference_mode, torch.no_grad])
def test_graph_captured_in_one_mode_replays_in_the_other(backend, device, first, then):
    with first():
        captured = capture(backend, doubled, torch.ones(2, device=device), copied=(0,))
    with then():
        captured.inputs[0].fill_(3.0)
        captured.replay()
        assert captured.outputs[0].tolist() == [6.0, 6.0]
