"""The capture runtime on the CPU: when it captures, what is copied, what a later replay overwrites."""

from __future__ import annotations

import logging
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


def test_later_calls_of_a_shape_only_replay() -> None:
    run = warm(runner(doubled, "user"), ones(3))
    results = [run(ones(3) * value)[0].clone() for value in (1, 2, 3)]
    assert [result[0].item() for result in results] == [2, 4, 6]
    assert (run.statistics.captures, run.statistics.replays) == (1, 3)


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


@pytest.mark.parametrize(("key", "other"), [(2, 3), (2, 4)])
def test_number_is_part_of_the_key(key: int, other: int) -> None:
    run = runner(lambda n, x: (x * n,), "number", "user")
    for number in (key, other):
        warm(run, number, ones(1))
    assert run(key, ones(1))[0].item() == key
    assert run(other, ones(1))[0].item() == other
    assert run.statistics.captures == 2


# User inputs.


def test_user_input_without_cloning_is_read_where_it_lies() -> None:
    run = warm(runner(doubled, "user", clone_input=False), ones(3))
    x = ones(3)
    run(x)
    x.fill_(5.0)
    assert torch.equal(run(x)[0], ones(3) * 10)
    assert run.statistics.captures == 1


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


def test_every_call_writes_to_a_mutated_input_once() -> None:
    cache = torch.zeros(2)
    run = runner(counted, "mutated", "user")
    for number in range(1, 5):  # runs, captures, replays twice
        (result,) = run(cache, ones(1))
        assert torch.equal(cache, ones(2) * number)
        assert torch.equal(result, cache)
    assert (run.statistics.warm_up_runs, run.statistics.captures, run.statistics.replays) == (1, 1, 3)


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


# Limits and switches.


def test_limit_warns_once_and_names_the_option(caplog: pytest.LogCaptureFixture) -> None:
    run = warm(runner(doubled, "user", limit=1), ones(1))
    with caplog.at_level(logging.WARNING, logger="torchair"):
        for size in (1, 2, 3):
            run(ones(size))
    (record,) = caplog.records
    assert "1 graphs are captured, which is debug.aclgraph.static_capture_size_limit" in record.getMessage()


def test_eager_runs_the_graph_and_captures_nothing() -> None:
    cache = torch.zeros(2)
    run = runner(counted, "mutated", "user", eager=True)
    run(cache, ones(1))
    run(cache, ones(1))
    assert torch.equal(cache, ones(2) * 2)
    assert (run.statistics.captures, run.statistics.eager_calls) == (0, 2)


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


def test_cache_that_was_made_in_inference_mode_is_written_there() -> None:
    run = runner(counted, "mutated", "user")
    with torch.inference_mode():
        cache = torch.zeros(2)
        for number in range(1, 4):
            assert torch.equal(run(cache, ones(1))[0], ones(2) * number)
