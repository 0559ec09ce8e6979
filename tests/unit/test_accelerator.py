"""Device kinds cuda and npu on a stand-in for their modules; tests/device has what needs a real device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.npu_emulator.device import DEFAULT_STREAM
from tests.support.fake_device import FakeDevice
from warmrank.worker.devices import backend_for
from warmrank.worker.devices.accelerator import AcceleratorBackend, AcceleratorGraph
from warmrank.worker.devices.accelerator_memory import AcceleratorPool
from warmrank.worker.devices.cpu import CpuBackend
from warmrank.worker.errors import DeviceUnavailable, NotCapturable

NONE: frozenset[int] = frozenset()
FIRST = frozenset((0,))


@pytest.fixture
def module() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def backend(module: FakeDevice) -> AcceleratorBackend:
    return AcceleratorBackend("cuda", module, memory="cpu")


def capture(
    backend: AcceleratorBackend,
    graph: Callable[..., Any],
    inputs: Sequence[Any],
    pool: AcceleratorPool | None = None,
    *,
    copied: frozenset[int] = FIRST,
    aliased: frozenset[int] = NONE,
) -> AcceleratorGraph:
    pool = backend.pool() if pool is None else pool
    return backend.capture(graph, inputs, copied=copied, aliased=aliased, pool=pool)


def test_replay_computes_on_what_the_buffers_hold(backend: AcceleratorBackend) -> None:
    weight = torch.randn(8, 8)
    found = capture(backend, lambda x: ((x @ weight).relu() + 1,), [torch.randn(4, 8)])
    for _ in range(3):
        x = torch.randn(4, 8)
        found.inputs[0].copy_(x)
        found.replay()
        assert torch.equal(found.outputs[0], (x @ weight).relu() + 1)


def test_inputs_that_are_not_copied_are_read_where_they_lie(backend: AcceleratorBackend) -> None:
    x, state = torch.ones(4), torch.ones(4)
    found = capture(backend, lambda x, state: (x + state,), [x, state])
    assert found.inputs[1] is state
    assert found.inputs[0].data_ptr() != x.data_ptr()
    state.fill_(5)
    found.replay()
    assert found.outputs[0].tolist() == [6.0] * 4


def test_mutated_input_changes_once_in_a_replay(backend: AcceleratorBackend) -> None:
    cache = torch.zeros(4)
    found = capture(
        backend, lambda x, cache: (cache.add_(x),), [torch.ones(4), cache], aliased=frozenset((0,))
    )
    cache.zero_()
    found.replay()
    found.replay()
    assert cache.tolist() == [2.0] * 4
    assert found.outputs[0].data_ptr() == cache.data_ptr()


def test_smaller_graph_takes_no_further_memory_of_the_pool(backend: AcceleratorBackend) -> None:
    pool = backend.pool()
    capture(backend, lambda x: (x * 2 + 1,), [torch.ones(60_000)], pool)
    held = pool.size_bytes
    small = capture(backend, lambda x: (x * 3,), [torch.ones(500)], pool)
    assert pool.size_bytes == held
    assert small.size_bytes == 2048 * 2  # one buffer, one output


def test_replay_overwrites_what_another_graph_of_the_pool_returned(backend: AcceleratorBackend) -> None:
    pool = backend.pool()
    first = capture(backend, lambda x: (x + 1,), [torch.ones(64)], pool)
    second = capture(backend, lambda x: (x + 2,), [torch.ones(64)], pool)
    first.replay()
    assert first.outputs[0].tolist() == [2.0] * 64
    second.replay()
    assert first.outputs[0].tolist() == [3.0] * 64


def test_pools_of_their_own_share_nothing(backend: AcceleratorBackend) -> None:
    first = capture(backend, lambda x: (x + 1,), [torch.ones(64)])
    second = capture(backend, lambda x: (x + 2,), [torch.ones(64)])
    first.replay()
    second.replay()
    assert first.outputs[0].tolist() == [2.0] * 64


def test_output_of_the_pool_used_where_it_lies_is_never_overwritten(backend: AcceleratorBackend) -> None:
    pool = backend.pool()
    first = capture(backend, lambda x: (x + 1,), [torch.ones(64)], pool)
    first.replay()
    cache = first.outputs[0]
    second = capture(backend, lambda x, cache: (x * 7 + cache, x * 9), [torch.ones(64), cache], pool)
    second.replay()
    second.replay()
    assert cache.tolist() == [2.0] * 64
    assert second.outputs[0].tolist() == [9.0] * 64


def test_output_of_the_pool_can_be_copied_into_a_buffer(backend: AcceleratorBackend) -> None:
    pool = backend.pool()
    first = capture(backend, lambda x: (x + 1,), [torch.ones(64)], pool)
    first.replay()
    second = capture(backend, lambda x: (x * 7,), [first.outputs[0]], pool)
    second.replay()
    assert second.outputs[0].tolist() == [14.0] * 64


def test_outputs_that_share_memory_go_on_sharing_it(backend: AcceleratorBackend) -> None:
    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        return y, y.view(2, 4)[1], 3

    found = capture(backend, graph, [torch.arange(8.0)])
    found.replay()
    whole, part, number = found.outputs
    assert part.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert number == 3


def test_view_of_an_output_outlives_function_graph_and_pool(
    backend: AcceleratorBackend, module: FakeDevice
) -> None:
    found = capture(backend, lambda x: (x + 1,), [torch.ones(64)])
    found.replay()
    view = found.outputs[0][:3]
    del found
    gc.collect()
    module.empty_cache()
    assert view.tolist() == [2.0] * 3


def test_pool_without_outputs_is_released(backend: AcceleratorBackend, module: FakeDevice) -> None:
    found = capture(backend, lambda x: (x + 1,), [torch.ones(64)])
    assert module.memories
    del found
    gc.collect()
    module.empty_cache()
    assert not module.memories


def compiled(source: str) -> Any:
    """A graph function in a file of the name that engine graph uses."""
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<warmrank graph>", "exec"), scope)  # noqa: S102
    return scope["bind"]()


WAITING = """
def bind():
    aten_add = torch.ops.aten.add.Tensor
    aten_item = torch.ops.aten._local_scalar_dense.default

    def graph(a0):
        b = aten_add(a0, 1)
        c = aten_item(b)
        return (b, c)

    return graph
"""


def test_graph_that_waits_for_the_device_is_refused_by_operator(
    backend: AcceleratorBackend, module: FakeDevice
) -> None:
    with pytest.raises(NotCapturable, match="operator aten_item cannot be captured on cuda") as caught:
        capture(backend, compiled(WAITING), [torch.ones(1)])
    assert caught.value.operator == "aten_item"
    assert "\n" not in str(caught.value)
    assert module.current_stream(0) == DEFAULT_STREAM
    assert not module.is_generator_stuck


def test_pool_works_on_after_a_capture_that_failed(backend: AcceleratorBackend) -> None:
    pool = backend.pool()
    with pytest.raises(NotCapturable, match="names no operator"):
        capture(backend, lambda x: (x.item(),), [torch.ones(1)], pool)
    found = capture(backend, lambda x: (x + 1,), [torch.ones(4)], pool)
    found.replay()
    assert found.outputs[0].tolist() == [2.0] * 4


def test_lack_of_memory_is_no_reason_to_blame_an_operator(
    backend: AcceleratorBackend, module: FakeDevice
) -> None:
    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        if module.is_capturing:
            raise torch.OutOfMemoryError("no memory left")
        return (x,)

    with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
        capture(backend, graph, [torch.ones(1)])


def test_error_in_the_graph_itself_stays_what_it_is(backend: AcceleratorBackend) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        capture(backend, lambda x: (x @ torch.ones(3, 3),), [torch.ones(4, 4)])


@pytest.mark.parametrize("what", ["input", "output"])
def test_tensor_that_lies_elsewhere_is_refused(backend: AcceleratorBackend, what: str) -> None:
    elsewhere = torch.ones(3, device="meta")
    graphs: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "input": (lambda x, y: (x,), [torch.ones(3), elsewhere]),
        "output": (lambda x: (1, elsewhere), [torch.ones(3)]),
    }
    graph, inputs = graphs[what]
    with pytest.raises(NotCapturable, match=f"{what} 1 of the graph is on meta"):
        capture(backend, graph, inputs)


def test_sparse_tensor_is_refused(backend: AcceleratorBackend) -> None:
    with pytest.raises(NotCapturable, match=r"input 0 of the graph has layout torch.sparse_coo"):
        capture(backend, lambda x: (x.to_dense(),), [torch.eye(3).to_sparse()], copied=NONE)


def test_lazily_conjugated_and_negated_outputs_keep_their_values(backend: AcceleratorBackend) -> None:
    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 1
        return y.conj(), y.conj().imag

    x = torch.tensor([1 + 2j, 3 - 4j])
    found = capture(backend, graph, [x])
    found.replay()
    assert torch.equal(found.outputs[0], x.conj())
    assert torch.equal(found.outputs[1], -x.imag)


def test_lazily_conjugated_input_is_copied_by_value(backend: AcceleratorBackend) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    found = capture(backend, lambda x: (x + 1,), [x.conj()])
    found.replay()
    assert torch.equal(found.outputs[0], x.conj() + 1)


def test_empty_tensors_are_captured(backend: AcceleratorBackend) -> None:
    found = capture(backend, lambda x: (x * 2, torch.empty(0)), [torch.ones(0, 3)])
    found.replay()
    assert found.outputs[0].shape == (0, 3)
    assert found.outputs[1].shape == (0,)


def test_replays_draw_the_numbers_of_eager_calls(backend: AcceleratorBackend) -> None:
    def draw(x: torch.Tensor) -> tuple[Any, ...]:
        return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x), torch.bernoulli(x / 2)

    x = torch.ones(64)
    torch.manual_seed(7)
    found = capture(backend, draw, [x])
    replayed = []
    for _ in range(3):
        found.replay()
        replayed.append([value.clone() for value in found.outputs])
    torch.manual_seed(7)
    for values in replayed:
        for value, expected in zip(values, draw(x), strict=True):
            assert torch.equal(value, expected)
    assert not torch.equal(replayed[0][1], replayed[1][1])


def test_same_handle_is_the_same_pool(backend: AcceleratorBackend) -> None:
    handle = backend.new_handle()
    pool = backend.pool(handle)
    assert backend.pool(handle) is pool
    assert backend.pool(backend.new_handle()) is not pool
    assert backend.pool() is not backend.pool()


def test_memory_is_not_shared_with_others_who_capture_under_the_handle(
    backend: AcceleratorBackend, module: FakeDevice
) -> None:
    handle = module.graph_pool_handle()
    capture(backend, lambda x: (x + 1,), [torch.ones(4)], backend.pool(handle))
    assert handle not in module.memories


@pytest.mark.parametrize("handle", [(), (1,), (1, 2, 3), ("cpu", 1), (True, 0)])
def test_handle_of_another_form_is_refused(backend: AcceleratorBackend, handle: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="is no pool handle of device kind cuda"):
        backend.pool(handle)


def test_pool_of_another_device_kind_is_refused(backend: AcceleratorBackend) -> None:
    pool: Any = CpuBackend().pool()
    with pytest.raises(TypeError, match="a pool of another device kind"):
        capture(backend, lambda x: (x,), [torch.ones(1)], pool)


def test_rank_that_sees_one_device_takes_it() -> None:
    assert AcceleratorBackend("cuda", FakeDevice(1)).device(5) == torch.device("cuda", 0)


@pytest.mark.parametrize(("kind", "collectives"), [("cuda", "nccl"), ("npu", "hccl")])
def test_kinds_differ_in_their_collectives_only(kind: str, collectives: str) -> None:
    backend = AcceleratorBackend(kind, FakeDevice(), memory="cpu")
    assert (backend.kind, backend.collectives) == (kind, collectives)
    found = capture(backend, lambda x: (x + 1,), [torch.ones(4)])
    found.replay()
    assert found.outputs[0].tolist() == [2.0] * 4


def test_buffers_made_in_inference_mode_are_filled_out_of_it(backend: AcceleratorBackend) -> None:
    with torch.inference_mode():
        found = capture(backend, lambda x: (x + 1,), [torch.ones(4)])
    found.inputs[0].fill_(3)
    found.replay()
    assert found.outputs[0].tolist() == [4.0] * 4
    assert not found.outputs[0].is_inference()


def test_rank_that_sees_all_devices_takes_its_own() -> None:
    backend = AcceleratorBackend("cuda", FakeDevice(4))
    assert backend.device(3) == torch.device("cuda", 3)
    with pytest.raises(DeviceUnavailable, match="local rank 4 has no device of its own: 4 devices"):
        backend.device(4)


def test_capture_without_tensors_uses_the_current_device(backend: AcceleratorBackend) -> None:
    found = capture(backend, lambda: (torch.ones(3),), [], copied=NONE)
    found.replay()
    assert found.outputs[0].tolist() == [1.0] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_says_what_is_missing() -> None:
    with pytest.raises(DeviceUnavailable, match="device kind cuda") as caught:
        backend_for("cuda")
    assert caught.value.missing in ("torch with CUDA", "NVIDIA driver")


def test_npu_without_torch_npu_says_what_is_missing() -> None:
    if hasattr(torch, "npu"):
        pytest.skip("torch_npu is installed")
    with pytest.raises(DeviceUnavailable, match="needs torch_npu on top of CANN") as caught:
        backend_for("npu")
    assert caught.value.missing == "torch_npu"
