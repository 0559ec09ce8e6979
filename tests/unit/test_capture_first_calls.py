"""A shape's first call runs the graph as it is; its second captures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import warmrank
from tests.support.devices import warm
from tests.support.small_models import Cached
from tests.support.tracing import cached
from warmrank.worker.capture.runner import CaptureOptions, GraphRunner
from warmrank.worker.devices.cpu import CpuBackend
from warmrank.worker.runtime.artifact import GraphFacts

pytestmark = pytest.mark.usefixtures("no_grad")

Graph = Callable[..., tuple[Any, ...]]
NAN = float("nan")


class Failing(CpuBackend):
    """Has no memory for a capture as often as it is told."""

    times = 0

    def capture(self, *given: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            msg = "out of memory"
            raise RuntimeError(msg)
        return super().capture(*given, **options)


def runner(graph: Graph, *classes: str, backend: CpuBackend | None = None, **options: Any) -> GraphRunner:
    facts = GraphFacts(input_classes=classes, num_outputs=1, aliased_outputs=())
    return GraphRunner(graph, facts, backend or CpuBackend(), CaptureOptions(**options))


def doubled(x: torch.Tensor) -> tuple[Any, ...]:
    return (x * 2,)


def counted(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(x.sum())
    return (cache * 1.0,)


def done(run: Any) -> tuple[int, int, int]:
    """How often it ran, captured and replayed."""
    found = run.statistics
    return found.warm_up_runs, found.captures, found.replays


# What happens when.


def test_first_call_runs_second_captures_third_replays() -> None:
    run = runner(doubled, "user")
    found = []
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(run(torch.full((3,), value))[0], torch.full((3,), 2 * value))
        found.append(done(run))
    assert found == [(1, 0, 0), (1, 1, 1), (1, 1, 2)]
    assert run.statistics.eager_calls == 0


def test_recapture_at_a_new_address_happens_at_once() -> None:
    run = warm(runner(counted, "mutated", "user"), torch.zeros(2), torch.ones(1))
    caches = [torch.zeros(2) for _ in range(3)]
    for cache in caches:
        assert torch.equal(run(cache, torch.ones(1))[0], torch.ones(2))
    assert (done(run), run.statistics.recaptures) == ((1, 3, 3), 2)


def test_shape_that_ran_once_runs_without_capture_when_others_took_all_that_the_limit_allows() -> None:
    run = runner(doubled, "user", limit=1)
    for size in (1, 2, 2, 1, 1):
        assert torch.equal(run(torch.ones(size))[0], torch.ones(size) * 2)
    assert done(run) == (2, 1, 1)
    assert run.statistics.eager_causes == (("static_capture_size_limit is reached", 2),)


def test_recapture_that_failed_is_tried_again_at_the_next_call() -> None:
    backend = Failing()
    run = runner(lambda weight, x: (weight * x,), "state", "user", backend=backend)
    weights = [torch.ones(3), torch.ones(3) * 2]
    warm(run, weights[0], torch.ones(3))(weights[0], torch.ones(3))
    backend.times = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        run(weights[1], torch.ones(3))
    assert torch.equal(run(weights[1], torch.ones(3))[0], torch.ones(3) * 2)
    assert done(run) == (1, 2, 2)


# Memory.


@pytest.mark.parametrize("pool", ["own", "given"])
def test_output_of_a_first_call_is_never_overwritten(pool: str) -> None:
    options: dict[str, Any] = {"pool": warmrank.graph_pool_handle("cpu")} if pool == "given" else {}
    run = runner(doubled, "user", **options)
    kept = [(size, run(torch.ones(size))[0]) for size in (8, 4)]
    for size in (8, 4, 8, 4):
        run(torch.full((size,), NAN))
    assert done(run) == (2, 2, 4)
    for size, value in kept:
        assert torch.equal(value, torch.ones(size) * 2)


def test_output_of_a_first_call_may_be_fed_to_the_call_that_captures() -> None:
    run = runner(doubled, "user")
    x = torch.ones(3)
    for number in range(1, 6):
        (x,) = run(x)
        assert torch.equal(x, torch.full((3,), 2.0**number))


@pytest.mark.parametrize("options", [{}, {"reuse_in_function": False}], ids=["shared pool", "own pools"])
def test_shape_that_comes_once_takes_nothing_of_a_pool(options: dict[str, Any]) -> None:
    run = warm(runner(doubled, "user", **options), torch.ones(64))
    assert run.statistics.pools == ()
    run(torch.ones(64))
    before = run.statistics.pools
    for size in range(100, 200):
        run(torch.ones(size))
    assert run.statistics.pools == before
    assert run.statistics.captures == 1


# Threads.


def test_threads_that_meet_new_shapes_run_each_once_and_capture_it_once() -> None:
    run = runner(doubled, "user", clone_output=True, limit=64)

    def call(value: int) -> bool:
        with torch.no_grad():
            x = torch.full((1 + value % 20,), float(value))
            return torch.equal(run(x)[0], x * 2)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(400)))
    assert done(run) == (20, 20, 380)


# Cached functions.


def test_models_cache_is_written_once_by_every_call(tmp_path: Path) -> None:
    model, wanted = (Cached().requires_grad_(requires_grad=False) for _ in range(2))
    wanted.load_state_dict(model.state_dict())
    function = cached(model.accumulate, tmp_path)
    for _ in range(4):  # runs, captures, replays twice
        x = torch.randn(2, 4)
        torch.testing.assert_close(function(x), wanted.accumulate(x))
        torch.testing.assert_close(model.get_buffer("cache"), wanted.get_buffer("cache"))
    assert done(function) == (1, 1, 3)
