"""What of the emulated NPU needs no real package: memory, graphs, CANN's versions, kernels, refusals."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from warmrank.worker.errors import EmulatorUnavailable, NotEmulated
from warmrank.worker.npu_emulator import cann, kernels, package, write_tree
from warmrank.worker.npu_emulator.device import Device
from warmrank.worker.npu_emulator.graph import Graph
from warmrank.worker.npu_emulator.native import native_module
from warmrank.worker.npu_emulator.operators import schemas_in

ANY = (0, 7)


@pytest.fixture
def device() -> Device:
    found = Device()
    found.current_streams[0] = found.new_stream()
    return found


def captured(device: Device, work: Any, pool: tuple[int, int] = ANY) -> tuple[Graph, Any]:
    graph: Graph = device.graph_type()
    with torch.no_grad():
        graph.capture_begin(pool=pool)
        outputs = work()
        graph.capture_end()
    return graph, outputs


def test_capture_leaves_what_it_wrote_to_as_it_was(device: Device) -> None:
    cache, other = torch.zeros(3), torch.ones(2, 3)
    graph, _ = captured(device, lambda: (cache.add_(1), other[1].mul_(5)))
    assert cache.tolist() == [0.0] * 3
    assert other.tolist() == [[1.0] * 3] * 2
    graph.replay()
    assert cache.tolist() == [1.0] * 3
    assert other.tolist() == [[1.0] * 3, [5.0] * 3]


def test_outputs_hold_nothing_before_the_first_replay(device: Device) -> None:
    x = torch.ones(4)
    graph, output = captured(device, lambda: x + 1)
    assert output.tolist() != [2.0] * 4
    graph.replay()
    assert output.tolist() == [2.0] * 4


def test_capture_draws_no_random_numbers(device: Device) -> None:
    state = torch.get_rng_state()
    captured(device, lambda: torch.rand(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_empty_tensor_is_a_place_that_replays_leave_alone(device: Device) -> None:
    x = torch.ones(4)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.empty_like(x)
        return place, place * 2

    graph, (place, output) = captured(device, work)
    place.fill_(3.0)
    graph.replay()
    assert output.tolist() == [6.0] * 4


def test_empty_tensor_is_a_valid_index_while_it_is_captured(device: Device) -> None:
    table = torch.rand(2, 3)
    graph, (place, output) = captured(
        device, lambda: (index := torch.empty(1, dtype=torch.int64), table[index])
    )
    place.fill_(1)
    graph.replay()
    assert torch.equal(output[0], table[1])


def test_graph_knows_addresses_only(device: Device) -> None:
    x = torch.ones(1 << 20)
    graph, output = captured(device, lambda: x[:2] + 1)
    address = x.data_ptr()
    x.fill_(5)
    graph.replay()
    assert output.tolist() == [6.0, 6.0]
    assert x.data_ptr() == address


@pytest.mark.parametrize(
    "work",
    [lambda x: x.item(), lambda x: x.nonzero(), lambda x: x.equal(x)],
    ids=["item", "nonzero", "equal"],
)
def test_operator_that_waits_breaks_the_capture(device: Device, work: Any) -> None:
    x = torch.ones(1)
    graph: Graph = device.graph_type()
    graph.capture_begin(pool=ANY)
    with pytest.raises(RuntimeError, match="not permitted"):
        work(x)
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()
    assert not device.is_capturing


def test_waiting_for_the_device_breaks_the_capture(device: Device) -> None:
    graph: Graph = device.graph_type()
    graph.capture_begin(pool=ANY)
    with pytest.raises(RuntimeError, match="not permitted"):
        device.wait()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()


def test_capture_on_the_default_stream_is_refused(device: Device) -> None:
    device.current_streams.clear()
    with pytest.raises(RuntimeError, match="non-default stream"):
        device.graph_type().capture_begin(pool=ANY)


def test_graph_that_was_not_captured_does_not_replay(device: Device) -> None:
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        device.graph_type().replay()


def test_streams_for_graphs_are_used_up() -> None:
    device = Device(num_streams=1)
    device.current_streams[0] = device.new_stream()
    first, _ = captured(device, lambda: torch.ones(1))
    with pytest.raises(RuntimeError, match="207008"):
        captured(device, lambda: torch.ones(1))
    first.reset()
    captured(device, lambda: torch.ones(1))


def test_later_capture_takes_what_an_earlier_one_left(device: Device) -> None:
    _, first = captured(device, lambda: torch.ones(100))
    address = first.data_ptr()
    _, beside = captured(device, lambda: torch.ones(100))
    assert beside.data_ptr() != address
    del first
    gc.collect()
    _, again = captured(device, lambda: torch.ones(100))
    assert again.data_ptr() == address


def test_checkpoint_makes_memory_free_that_somebody_still_holds(device: Device) -> None:
    graph, _ = captured(device, lambda: None)
    state = device.checkpoint(ANY)
    _, held = captured(device, lambda: torch.ones(100))
    device.memory_of(ANY).restore(state)
    _, taken = captured(device, lambda: torch.ones(100))
    assert taken.data_ptr() == held.data_ptr()
    del held
    gc.collect()  # gives nothing back: it is the other one's now
    _, beside = captured(device, lambda: torch.ones(100))
    assert beside.data_ptr() != taken.data_ptr()
    del graph


@pytest.mark.slow
def test_memory_of_a_pool_without_graphs_is_released_as_far_as_it_is_free(device: Device) -> None:
    graph, kept = captured(device, lambda: torch.ones(100))
    graph.replay()
    del graph
    gc.collect()
    device.empty_cache()
    assert kept.tolist() == [1.0] * 100
    del kept
    gc.collect()
    device.empty_cache()
    assert device.snapshot() == []


def test_bytes_in_use_are_counted(device: Device) -> None:
    _, held = captured(device, lambda: torch.ones(1024))
    assert device.allocated == 4096
    del held
    gc.collect()
    assert device.allocated == 0
    assert device.peak == 4096


# CANN.


def test_versions_come_from_the_tree_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(write_tree(tmp_path, version="8.3.0")))
    assert cann.version_of() == cann.version_of("RUNTIME") == "8.3.0"
    assert cann.version_of("DRIVER") == ""


@pytest.mark.parametrize(
    ("asked", "found"), [("8.2.9", True), ("8.3", True), ("8.3.1", False), ("9.0.0", False)]
)
def test_versions_are_compared_by_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, *, found: bool
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(write_tree(tmp_path, version="8.3.0")))
    assert cann.at_least(asked) is found


# Operators.

LIST = """autograd:
- func: gru(Tensor x) -> Tensor
custom:
- func: npu_one(Tensor x) -> Tensor
  impl_ns: op_api
- device_check: NoCheck
  func: npu_two.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)
- func: npu_one(Tensor x) -> Tensor
quant:
- func: dequantize.self(Tensor self) -> Tensor
"""


def test_only_the_packages_own_schemas_are_taken_and_once() -> None:
    assert schemas_in(LIST) == [
        "npu_one(Tensor x) -> Tensor",
        "npu_two.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    ]


def test_norm_is_that_of_the_plain_operators_to_the_bit() -> None:
    x, gamma = torch.randn(4, 64, dtype=torch.bfloat16), torch.rand(64, dtype=torch.bfloat16)
    wide = x.to(torch.float32)
    plain = gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    assert torch.equal(kernels.rms_norm(x, gamma)[0], plain)


def test_dynamic_quantisation_comes_back_within_half_a_step() -> None:
    x = torch.randn(5, 32)
    values, scale = kernels.dynamic_quant(x)
    assert values.dtype == torch.int8
    assert bool(((values * scale.unsqueeze(-1) - x).abs() <= scale.unsqueeze(-1) * 0.501).all())


def test_quantisation_rounds_shifts_and_limits() -> None:
    x, scales = torch.tensor([[1.0, -1.26, 900.0]]), torch.tensor([0.5])
    assert kernels.quantize(x, scales, torch.tensor([3.0]), 1, axis=-1).tolist() == [[5, 0, 127]]


def test_attention_is_that_of_torch() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    mask = torch.ones(5, 5).triu(1).bool()
    ours = kernels.fusion_attention(q, k, v, 3, "BNSD", atten_mask=mask, scale=8**-0.5)[0]
    torch.testing.assert_close(ours, torch.nn.functional.scaled_dot_product_attention(q, k, v, ~mask))


def test_batched_product_is_transposed() -> None:
    x, weight = torch.randn(3, 2, 4), torch.randn(2, 4, 5)
    ours = kernels.transpose_batchmatmul(x, weight, perm_x1=[1, 0, 2])
    assert torch.equal(ours, torch.bmm(x.transpose(0, 1), weight).transpose(0, 1))


def test_rotation_is_that_of_the_plain_operators() -> None:
    x, cos, sin = torch.randn(2, 8), torch.randn(8), torch.randn(8)
    turned = torch.cat((-x[..., 4:], x[..., :4]), dim=-1)
    assert torch.equal(kernels.rotary_mul(x, cos, sin), x * cos + turned * sin)


def test_updates_are_written_from_each_rows_index_on() -> None:
    cache, updates = torch.zeros(2, 1, 4, 2), torch.ones(2, 1, 1, 2)
    kernels.scatter_update_(cache, torch.tensor([1, 3]), updates, -2)
    assert cache.sum(-1).tolist() == [[[0, 2, 0, 0]], [[0, 0, 0, 2]]]


def test_argument_that_no_kernel_knows_is_refused_by_name() -> None:
    with pytest.raises(NotEmulated, match=r"npu_dynamic_quant with dst_type=5"):
        kernels.dynamic_quant(torch.ones(1, 4), dst_type=5)


# Native parts.


def test_native_function_that_is_not_emulated_says_so_by_name() -> None:
    found: Any = native_module(Device())
    with pytest.raises(NotEmulated, match=r"torch_npu\._C\._npu_stress_detect is native"):
        found._npu_stress_detect(0, 0)


def test_native_class_that_is_not_emulated_says_so_when_it_is_made() -> None:
    found: Any = native_module(Device())

    class Shapes(found._NPUShapeHandling):  # type: ignore[misc]
        """As in the real package."""

    with pytest.raises(NotEmulated, match="_NPUShapeHandling"):
        Shapes()


def test_device_that_is_not_visible_is_refused() -> None:
    found: Any = native_module(Device(2))
    found._npu_setDevice(1)
    with pytest.raises(RuntimeError, match="107001"):
        found._npu_setDevice(2)


def test_missing_package_is_an_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EmulatorUnavailable, match="pip install --no-deps 'torch_npu"):
        package.package_home()
