"""What the runtime counts, why it captures again or not at all, and how that reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.devices import warm
from tests.support.small_models import Cached, Plain
from tests.support.tracing import cached
from warmrank.worker.capture.runner import CaptureOptions, GraphRunner
from warmrank.worker.capture.statistics import CaptureStatistics, PoolStatistics, total
from warmrank.worker.devices.cpu import CpuBackend
from warmrank.worker.errors import NotCapturable
from warmrank.worker.runtime.artifact import GraphFacts

pytestmark = pytest.mark.usefixtures("no_grad")

Graph = Callable[..., tuple[Any, ...]]


class Uncapturable(CpuBackend):
    """Runs the graph in the pool's memory, as a device that finds out on the way, then refuses it."""

    def __init__(self, *memory: torch.Tensor) -> None:
        self.memory = memory

    def capture(self, graph: Graph, inputs: Any, **options: Any) -> Any:
        graph(*inputs)
        for value in self.memory:
            value.fill_(-1.0)
        msg = "aten.item.default reads a value on the host"
        raise NotCapturable(msg, operator="aten.item.default")


def runner(
    graph: Graph,
    *classes: str,
    backend: CpuBackend | None = None,
    of_module: tuple[int, ...] = (),
    **options: Any,
) -> GraphRunner:
    facts = GraphFacts(
        input_classes=classes,
        num_outputs=1,
        aliased_outputs=(),
        input_names=("self.weight", "cache", "x")[: len(classes)],
        module_inputs=of_module,
    )
    return GraphRunner(graph, facts, backend or CpuBackend(), CaptureOptions(**options))


def used(weight: torch.Tensor, cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(x)
    return (weight * cache + x,)


def using(
    *, captures: bool = True, **options: Any
) -> tuple[GraphRunner, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A runner after a call that captured, if calls of it do so, and the inputs of that call."""
    run = runner(used, "state", "mutated", "user", of_module=(0,), **options)
    inputs = torch.ones(4), torch.zeros(4), torch.ones(4)
    if captures:
        warm(run, *inputs)
    run(*inputs)
    return run, *inputs


# Causes of recapture.


def test_new_address_of_a_parameter_is_named() -> None:
    run, weight, cache, x = using()
    run(weight.clone(), cache, x)
    assert run.statistics.recapture_causes == (("parameter or buffer self.weight has a new address", 1),)


def test_another_layout_at_the_old_address_is_named_and_seen() -> None:
    run = runner(lambda weight, cache: (weight * 2 + cache,), "state", "mutated", of_module=(0,))
    weight, cache = torch.arange(4.0).reshape(2, 2), torch.zeros(2, 2)
    warm(run, weight, cache)(weight, cache)
    assert torch.equal(run(weight.T, cache)[0], weight.T * 2)
    assert run.statistics.recapture_causes == (("parameter or buffer self.weight has another layout", 1),)


def test_user_inputs_of_other_strides_where_elements_overlap_are_read_correctly() -> None:
    run = runner(lambda weight, cache, x: (x * 2,), "state", "state", "user", of_module=(0, 1))
    weight = torch.ones(1)
    warm(run, weight, weight, torch.ones(2, 3))
    assert torch.equal(
        run(weight, weight, torch.arange(3.0).expand(2, 3))[0], torch.arange(3.0).expand(2, 3) * 2
    )
    whole = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(run(weight, weight, whole)[0], whole * 2)
    assert run.statistics.recapture_causes == (("user inputs have other strides", 1),)


def test_forced_recapture_captures_on_every_call_also_the_first() -> None:
    run, weight, cache, x = using(captures=False, force_recapture=True)
    for number in range(2, 4):
        assert torch.equal(run(weight, cache, x)[0], torch.full((4,), number + 1.0))
    assert torch.equal(cache, torch.full((4,), 3.0))
    assert run.statistics.recapture_causes == (("force_recapture", 2),)
    assert (run.statistics.captures, run.statistics.replays) == (3, 3)


def test_frozen_parameter_at_another_address_is_not_looked_at() -> None:
    run, weight, cache, x = using(frozen_parameters=True)
    run(weight.clone(), cache, x)
    assert run.statistics.recaptures == 0


# Calls without capture.


def test_graph_that_cannot_be_captured_runs_without_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(4)
    run = runner(used, "state", "mutated", "user", of_module=(0,), backend=Uncapturable(x))
    weight, cache = torch.ones(4), torch.zeros(4)
    warm(run, weight, cache, x)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        results = [run(weight, cache, value)[0] for value in (x, torch.ones(1))]
    assert torch.equal(cache, torch.full((4,), 2.0))
    assert [result[0].item() for result in results] == [2.0, 3.0]
    (record,) = caplog.records
    assert "runs without capture from now on; it cannot be captured: aten.item.default" in record.getMessage()
    cause = "it cannot be captured: aten.item.default reads a value on the host"
    assert run.statistics.eager_causes == ((cause, 2),)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"eager": True}, "asked for (debug.run_eagerly)"),
        ({"limit": 0}, "static_capture_size_limit is reached"),
    ],
)
def test_call_without_capture_has_a_cause(options: dict[str, Any], cause: str) -> None:
    run, *_ = using(captures=False, **options)
    assert run.statistics.eager_causes == ((cause, 1),)
    assert run.statistics.warm_up_runs == 0


def test_module_state_that_a_graph_returned_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    run = runner(lambda weight, cache: (cache.add_(1.0) * 2,), "state", "mutated", of_module=(0,))
    weight = torch.ones(1)
    (returned,) = warm(run, weight, torch.zeros(4))(weight, torch.zeros(4))
    with caplog.at_level(logging.WARNING, logger="torchair"):
        run(weight, returned)
    assert "mutated input cache lies in memory that a captured graph returned" in caplog.text


# The value.


def test_total_counts_a_shared_pool_once() -> None:
    shared = PoolStatistics(handle=(0, 3), num_graphs=2, size_bytes=10, saved_bytes=5)
    own = PoolStatistics(handle=None, num_graphs=1, size_bytes=7, saved_bytes=0)
    part = CaptureStatistics(
        captures=1, replays=2, warm_up_runs=3, eager_causes=(("x", 1),), pools=(shared, own)
    )
    summed = total([part, part])
    assert (summed.captures, summed.replays, summed.eager_calls) == (2, 4, 2)
    assert summed.warm_up_runs == 6
    assert (summed.pool_bytes, summed.saved_bytes) == (10 + 7 + 7, 5)


# Cached functions.


def test_statistics_of_a_function_add_up_its_variants(tmp_path: Path) -> None:
    model = Plain().requires_grad_(requires_grad=False)
    function = cached(model.affine, tmp_path, dynamic=False)
    for rows in (2, 3, 2, 3, 3):
        function(torch.ones(rows, 4))
    assert len(function.variants) == 2
    found = function.statistics
    assert (found.warm_up_runs, found.captures, found.replays) == (2, 2, 3)


def test_warm_up_loads_and_captures_without_running(tmp_path: Path) -> None:
    model = Cached().requires_grad_(requires_grad=False)
    function = cached(model.accumulate, tmp_path)
    before = model.get_buffer("cache").clone()
    function.warm_up(torch.ones(2, 4))
    assert torch.equal(model.get_buffer("cache"), before)
    assert (function.statistics.captures, function.statistics.replays) == (1, 0)
    function(torch.ones(2, 4))
    found = function.statistics
    assert (found.captures, found.replays, found.warm_up_runs) == (1, 1, 0)
