"""The capture runtime on the CPU: when it captures, what is copied, what a later replay overwrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.devices import warm
from warmrank.worker.capture.runner import CaptureOptions, GraphRunner
from warmrank.worker.devices.cpu import CpuBackend
from warmrank.worker.runtime.artifact import GraphFacts

pytestmark = pytest.mark.usefixtures("no_grad")

Graph = Callable[..., tuple[Any, ...]]


def runner(graph: Graph, *classes: str, aliased: tuple[int, ...] = (), **options: Any) -> GraphRunner:
    facts = GraphFacts(input_classes=classes, num_outputs=1, aliased_outputs=aliased)
    return GraphRunner(graph, facts, CpuBackend(), CaptureOptions(**options))


def doubled(x: torch.Tensor) -> tuple[Any, ...]:
    return (x * 2,)


def weighted(weight: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    return (weight * x,)


def counted(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    """Adds to its cache, so that each run of the graph leaves a trace."""
    cache.add_(x.sum())
    return (cache * 1.0,)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


# Capture and replay.


def test_cloned_output_is_not_overwritten() -> None:
    run = warm(runner(doubled, "user", clone_output=True), ones(3))
    first = run(ones(3))[0]
    run(ones(3) * 5)
    assert torch.equal(first, ones(3) * 2)


def test_cloned_output_that_shares_memory_with_an_input_stays_shared() -> None:
    def part(cache: torch.Tensor) -> tuple[Any, ...]:
        cache.add_(1.0)
        return cache[:1], cache * 1.0

    cache = torch.zeros(2)
    run = warm(runner(part, "mutated", aliased=(0,), clone_output=True), cache)
    shared, computed = run(cache)
    assert shared.data_ptr() == cache.data_ptr()
    assert computed.data_ptr() != run(cache)[1].data_ptr()


# Parameters, buffers and mutated inputs.


@pytest.mark.parametrize("kind", ["state", "mutated"])
def test_state_is_used_where_it_lies(kind: str) -> None:
    run = warm(runner(weighted, kind, "user"), ones(3), ones(3))
    weight = ones(3)
    run(weight, ones(3))
    weight.fill_(4.0)
    assert torch.equal(run(weight, ones(3))[0], ones(3) * 4)
    assert run.statistics.captures == 1


@pytest.mark.parametrize("kind", ["state", "mutated"])
def test_state_at_another_address_is_recaptured(kind: str) -> None:
    run = warm(runner(weighted, kind, "user"), ones(3), ones(3))
    weights = [ones(3), ones(3) * 2]
    assert [run(weight, ones(3))[0][0].item() for weight in weights] == [1, 2]
    assert (run.statistics.captures, run.statistics.recaptures) == (2, 1)


def test_capture_leaves_mutated_inputs_as_they_were() -> None:
    cache = torch.arange(2.0)
    run = runner(counted, "mutated", "user")
    run.prepare(cache, ones(1))
    assert torch.equal(cache, torch.arange(2.0))
    assert run.statistics.captures == 1


@pytest.mark.parametrize("options", [{"eager": True}, {"limit": 1}], ids=["eager", "limit"])
def test_capture_that_cannot_be_made_leaves_mutated_inputs_as_they_were(options: dict[str, Any]) -> None:
    run = runner(counted, "mutated", "user", **options)
    run.prepare(torch.zeros(3), ones(1))  # takes the only capture there may be
    cache = torch.arange(2.0)
    run.prepare(cache, ones(1))
    assert torch.equal(cache, torch.arange(2.0))


# A user input inside a mutated input's memory.


def reads_back(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(1.0)
    return (x * 10,)


def test_user_input_that_moves_into_a_mutated_input_sees_its_writes() -> None:
    cache = torch.zeros(2)
    run = warm(runner(reads_back, "mutated", "user"), torch.zeros(2), ones(1))
    assert run(cache, torch.zeros(1))[0].item() == 0
    assert run(cache, cache[:1])[0].item() == 20


def test_user_input_that_moves_within_a_mutated_input_reads_the_new_place() -> None:
    cache = torch.tensor([0.0, 100.0])
    run = warm(runner(reads_back, "mutated", "user"), torch.zeros(2), ones(1))
    assert run(cache, cache[:1])[0].item() == 10
    assert run(cache, cache[1:])[0].item() == 1020


# What the process is in when a graph runs.


def test_graph_runs_without_gradients() -> None:
    run = runner(doubled, "user")
    with torch.enable_grad():
        results = [run(ones(3).requires_grad_())[0] for _ in range(2)]  # runs, captures
    assert not any(result.requires_grad for result in results)


def test_graph_runs_without_autocast() -> None:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> tuple[Any, ...]:
        seen.append(torch.is_autocast_enabled("cpu"))
        return (x * 2,)

    run = runner(look, "user")
    with torch.autocast("cpu"):
        for _ in range(2):
            run(ones(3))
    assert seen == [False, False]  # it ran, and was captured
