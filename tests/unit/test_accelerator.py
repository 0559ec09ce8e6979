"""Device kinds cuda and npu on a stand-in for their modules; tests/device has what needs a real device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.npu_emulator.device import DEFAULT_STREAM
from tests.support import ascend_machine as machine
from tests.support.devices import NAMES, Drawing, FakeDevice, assert_equal, drawn
from tests.support.tracing import in_mode, traced
from warmrank.inference import cache_compile
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.devices import CapturedGraph, accelerator
from warmrank.worker.devices.accelerator import AcceleratorBackend, AcceleratorPool, device_module
from warmrank.worker.errors import BadConfig, DeviceUnavailable, NotCapturable, RandomOp
from warmrank.worker.runtime.function import CachedFunction


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
) -> CapturedGraph:
    pool = backend.pool() if pool is None else pool
    return backend.capture(graph, inputs, copied=frozenset((0,)), aliased=frozenset(), pool=pool)


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
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(WAITING, "<warmrank graph>", "exec"), scope)  # noqa: S102 - the file that engine graph names
    with pytest.raises(NotCapturable, match="operator aten_item cannot be captured on cuda") as caught:
        capture(backend, scope["bind"](), [torch.ones(1)])
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which tests lay out Ascend's things; its torch_npu can be imported."""
    places = machine.ascend_places(tmp_path)
    monkeypatch.setattr(accelerator, "ascend_places", lambda: places)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    return tmp_path


def test_variable_that_cann_would_cut_short_is_refused_before_torch_looks(root, monkeypatch):
    machine.lay_out_npus(root, "910B2", 2)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: None)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,2")
    with pytest.raises(DeviceUnavailable, match="it names 2, but this machine has 2 NPUs"):
        device_module("npu")


def cached(method: Any, cache_dir: Path, **options: Any) -> CachedFunction:
    return cache_compile(method, cache_dir=cache_dir, **{"rng": "allow", **options})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_cached_function_draws_what_the_function_draws(name: str, tmp_path: Path) -> None:
    method, x = getattr(Drawing(), name), torch.randn(4, 8)
    expected = drawn(method, x)
    assert not torch.equal(expected[0][0], expected[1][0])
    cold = cached(method, tmp_path)
    assert_equal(drawn(cold, x), expected)  # the first call compiles
    warm = cached(method, tmp_path)
    assert_equal(drawn(warm, x), expected)
    assert warm.last_result is not None
    assert warm.last_result.outcome == "loaded"


def test_random_operators_are_refused_by_default(tmp_path: Path) -> None:
    with torch.no_grad(), pytest.raises(RandomOp, match=r'pass rng="allow"') as caught:
        cached(Drawing().rand_like, tmp_path, rng="refuse")(torch.ones(4, 8))
    assert "torch.rand_like(x) + x" in str(caught.value)


def test_numbers_of_another_device_than_the_graphs_are_refused() -> None:
    """A captured graph of the device would hold what the host drew once."""
    with torch.no_grad():
        lowered = traced(Drawing().rand_like, torch.ones(4, 8)).lowered
    with pytest.raises(RandomOp, match="on another device than cuda") as caught:
        analyse(lowered, "self", random_on="cuda")
    assert "torch.rand_like(x) + x" in str(caught.value)


def test_mode_that_draws_other_numbers_is_refused(tmp_path: Path) -> None:
    config = in_mode("max-autotune")
    with pytest.raises(BadConfig, match='rng is "allow", but mode max-autotune'):
        cached(Drawing().rand_like, tmp_path, config=config)
