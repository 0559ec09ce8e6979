"""Device kinds cuda and npu on a stand-in for their modules; tests/device has what needs a real device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.npu_emulator.device import DEFAULT_STREAM
from tests.support import ascend_machine as machine
from tests.support.devices import FakeDevice
from warmrank.worker.devices import CapturedGraph, accelerator, backend_for
from warmrank.worker.devices.accelerator import AcceleratorBackend, device_module
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
) -> CapturedGraph:
    pool = backend.pool() if pool is None else pool
    return backend.capture(graph, inputs, copied=copied, aliased=aliased, pool=pool)


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


def test_lazily_conjugated_and_negated_outputs_keep_their_values(backend: AcceleratorBackend) -> None:
    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 1
        return y.conj(), y.conj().imag

    x = torch.tensor([1 + 2j, 3 - 4j])
    found = capture(backend, graph, [x])
    found.replay()
    assert torch.equal(found.outputs[0], x.conj())
    assert torch.equal(found.outputs[1], -x.imag)


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


def test_rank_that_sees_all_devices_takes_its_own() -> None:
    backend = AcceleratorBackend("cuda", FakeDevice(4))
    assert backend.device(3) == torch.device("cuda", 3)
    with pytest.raises(DeviceUnavailable, match="local rank 4 has no device of its own: 4 devices"):
        backend.device(4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_says_what_is_missing() -> None:
    with pytest.raises(DeviceUnavailable, match="device kind cuda") as caught:
        backend_for("cuda")
    assert caught.value.missing in ("torch with CUDA", "NVIDIA driver")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which tests lay out Ascend's things; its torch_npu can be imported."""
    places = machine.ascend_places(tmp_path)
    monkeypatch.setattr(accelerator, "here", lambda: places)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    return tmp_path


def with_devices(monkeypatch: pytest.MonkeyPatch, num_devices: int) -> Any:
    module = SimpleNamespace(is_available=lambda: num_devices > 0)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    return module


def test_variable_that_cann_would_cut_short_is_refused_before_torch_looks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.lay_out_npus(root, "910B2", 2)
    with_devices(monkeypatch, 1)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,2")
    with pytest.raises(DeviceUnavailable, match="it names 2, but this machine has 2 NPUs"):
        device_module("npu")


def test_variable_that_hides_every_npu_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lay_out_npus(root, "910B2", 2)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    with_devices(monkeypatch, 0)
    with pytest.raises(DeviceUnavailable, match="hides all 2 NPUs of this machine"):
        device_module("npu")


def test_npu_that_torch_does_not_find_is_told_with_what_is_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.lay_out_cann(root / "cann", "9.0.0")
    with_devices(monkeypatch, 0)
    with pytest.raises(DeviceUnavailable, match="torch finds no device") as raised:
        device_module("npu")
    assert f"(CANN 9.0.0 in {root / 'cann'}, no driver, 0 files /dev/davinci<N>)" in str(raised.value)


def test_torch_npu_that_does_not_import_is_told_with_what_is_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    machine.lay_out_driver(root, "25.5.0")
    with pytest.raises(DeviceUnavailable, match="needs torch_npu on top of CANN") as raised:
        device_module("npu")
    assert "Seen here: no CANN, driver 25.5.0, 0 files /dev/davinci<N>" in str(raised.value)


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DeviceUnavailable, match="no device kind 'tpu'; known kinds: cpu, cuda, npu"):
        backend_for("tpu")
