"""Random operators with ``rng="allow"``: fresh numbers on every call, the same as without the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.devices import NAMES, Drawing, FakeDevice, assert_equal, drawn
from tests.support.tracing import traced
from warmrank.inference import cache_compile
from warmrank.worker.capture.runner import CaptureOptions, GraphRunner
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.devices.accelerator import AcceleratorBackend
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.errors import BadConfig, RandomOp
from warmrank.worker.runtime.function import CachedFunction


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_captured_graph_draws_afresh_on_every_replay(name: str) -> None:
    method, x = getattr(Drawing(), name), torch.randn(4, 8)
    expected = drawn(method, x)
    with torch.no_grad():
        lowered = traced(method, x, dynamic=False).lowered
    facts = analyse(lowered, "self", random_on="cpu")
    assert facts.random
    built = GraphEngine().compile(lowered, facts, keep_compiled=False)
    graph = GraphEngine().load(built.sections, {}, {})
    backend = AcceleratorBackend("cuda", FakeDevice(), memory="cpu")
    runner = GraphRunner(graph, facts, backend, CaptureOptions())
    inputs = [
        parameter(method.__self__, item.source) if item.source != "L['x']" else x for item in lowered.inputs
    ]
    assert_equal(drawn(lambda x: runner(*inputs), x), expected)
    assert runner.statistics.captures == 1


def parameter(module: Any, source: str) -> Any:
    """A tensor of the linear layer by Dynamo's source for it."""
    return module.linear.weight if "weight" in source else module.linear.bias


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
    config = CompilerConfig()
    config.mode = "max-autotune"
    with pytest.raises(BadConfig, match='rng is "allow", but mode max-autotune'):
        cached(Drawing().rand_like, tmp_path, config=config)
