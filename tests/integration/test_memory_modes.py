"""The guide's options for reuse of memory, in all combinations: several graphs of two models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import warmrank
from warmrank.worker.runtime.runner import GraphRunner

ROWS = (16, 4, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.linear(x).relu() @ self.linear.weight
        return product


class Compiled:
    """A model through ``torch.compile``, and the runners that the backend made for its graphs."""

    def __init__(self, config: warmrank.CompilerConfig, *, dynamic: bool) -> None:
        self.model = Model().eval()
        self.runners: list[GraphRunner] = []
        self._backend = warmrank.get_npu_backend(compiler_config=config)
        self.call: Any = torch.compile(self.model, backend=self._noted, dynamic=dynamic)

    def _noted(self, graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        runner = self._backend(graph, inputs)
        assert isinstance(runner, GraphRunner)
        self.runners.append(runner)
        return runner

    def capture_all(self) -> None:
        """Every shape twice: the first call of a shape captures nothing."""
        for rows in ROWS:
            x = torch.rand(rows, 8)
            for _ in range(2):
                torch.testing.assert_close(self.call(x), self.model(x), rtol=0, atol=0)

    def graphs_in_pools(self) -> list[int]:
        return [pool.num_graphs for runner in self.runners for pool in runner.statistics.pools]


def configured(
    *, custom_pool: bool, reuse: bool, clone_input: bool, clone_output: bool
) -> warmrank.CompilerConfig:
    config = warmrank.CompilerConfig()
    config.mode = "reduce-overhead"
    if custom_pool:
        config.aclgraph_config.use_custom_pool = warmrank.graph_pool_handle("cpu")
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = not reuse
    config.debug.aclgraph.clone_input = clone_input
    config.debug.aclgraph.enable_output_clone = clone_output
    return config


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


# Each option on and off, and the guide's own script; the others are `slow`.
OFTEN = (
    (True, False, False, True),
    (True, True, True, False),
    (False, True, True, False),
    (False, False, True, False),
    (False, True, False, True),
)


@pytest.mark.parametrize(
    ("custom_pool", "reuse", "clone_input", "clone_output"),
    [
        pytest.param(*modes, marks=[] if modes in OFTEN else [pytest.mark.slow])
        for modes in itertools.product((True, False), repeat=4)
    ],
)
def test_each_combination_does_what_the_guide_says(custom_pool, reuse, clone_input, clone_output):
    config = configured(
        custom_pool=custom_pool, reuse=reuse, clone_input=clone_input, clone_output=clone_output
    )
    one, other = Compiled(config, dynamic=True), Compiled(config, dynamic=True)
    for compiled in (one, other):
        compiled.capture_all()
    for compiled in (one, other):
        assert len(compiled.runners) == 1
        assert compiled.graphs_in_pools() == ([6] if custom_pool else [3] if reuse else [1, 1, 1])
    assert_inputs_are_copied(one, copied=clone_input)
    assert_outputs_stay(one, stay=clone_output)


def assert_inputs_are_copied(compiled: Compiled, *, copied: bool) -> None:
    """Mode three: an input elsewhere is copied, or its graph captured again."""
    before = compiled.runners[0].statistics.captures
    first, second = torch.rand(4, 8), torch.rand(4, 8)
    for x in (first, second, second):
        torch.testing.assert_close(compiled.call(x), compiled.model(x), rtol=0, atol=0)
    after = compiled.runners[0].statistics
    assert (after.captures - before, after.recaptures) == ((0, 0) if copied else (2, 2))


def assert_outputs_stay(compiled: Compiled, *, stay: bool) -> None:
    x = torch.rand(2, 8)
    compiled.call(x)
    held = compiled.call(x)
    expected = held.clone()
    x.add_(1)
    torch.testing.assert_close(compiled.call(x), compiled.model(x), rtol=0, atol=0)
    assert torch.equal(held, expected) == stay


@pytest.mark.parametrize("custom_pool", [True, False])
def test_graphs_of_static_shapes_share_a_custom_pool_only(custom_pool: bool) -> None:
    """With ``dynamic=False`` each shape is a graph of Dynamo's, which mode two does not reach across."""
    config = configured(custom_pool=custom_pool, reuse=True, clone_input=True, clone_output=False)
    compiled = Compiled(config, dynamic=False)
    compiled.capture_all()
    assert compiled.graphs_in_pools() == ([3, 3, 3] if custom_pool else [1, 1, 1])
    pools = {pool for runner in compiled.runners for pool in runner.statistics.pools}
    assert {pool.handle for pool in pools} == {config.aclgraph_config.use_custom_pool}
