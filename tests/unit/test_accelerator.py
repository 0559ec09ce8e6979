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
from warmrank.worker.devices import CapturedGraph, accelerator
from warmrank.worker.devices.accelerator import AcceleratorBackend, device_module
from warmrank.worker.devices.accelerator_memory import AcceleratorPool
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


def test_graph_that_waits_for_the_device_is_refused_by_operator(backend, module):
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


def test_memory_is_not_shared_with_others_who_capture_under_the_handle(backend, module):
    handle = module.graph_pool_handle()
    capture(backend, lambda x: (x + 1,), [torch.ones(4)], backend.pool(handle))
    assert handle not in module.memories


def test_rank_that_sees_all_devices_takes_its_own() -> None:
    backend = AcceleratorBackend("cuda", FakeDevice(4))
    assert backend.device(3) == torch.device("cuda", 3)
    with pytest.raises(DeviceUnavailable, match="local rank 4 has no device of its own: 4 devices"):
        backend.device(4)


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


def test_variable_that_cann_would_cut_short_is_refused_before_torch_looks(root, monkeypatch):
    machine.lay_out_npus(root, "910B2", 2)
    with_devices(monkeypatch, 1)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,2")
    with pytest.raises(DeviceUnavailable, match="it names 2, but this machine has 2 NPUs"):
        device_module("npu")


def test_torch_npu_that_does_not_import_is_told_with_what_is_there(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    machine.lay_out_driver(root, "25.5.0")
    with pytest.raises(DeviceUnavailable, match="needs torch_npu on top of CANN") as raised:
        device_module("npu")
    assert "Seen here: no CANN, driver 25.5.0, 0 files /dev/davinci<N>" in str(raised.value)
