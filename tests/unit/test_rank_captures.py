"""What a rank proposes to capture, how it takes a step, and what its manifest lists."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from warmrank.cache_store.records.manifest import CaptureEntry
from warmrank.worker.capture.eager import EagerRunner
from warmrank.worker.capture.runner import CaptureOptions, GraphRunner
from warmrank.worker.devices.cpu import CpuBackend
from warmrank.worker.rank import captures as rank_captures
from warmrank.worker.runtime.artifact import GraphFacts

pytestmark = pytest.mark.usefixtures("no_grad")

DIGEST, OTHER = "ab" * 32, "cd" * 32
CACHE = torch.zeros(4)


def added(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(x.sum())
    return (cache.sum() + x[0].view(1)[:1] + x,)


def runner(**options: Any) -> GraphRunner:
    facts = GraphFacts(input_classes=("mutated", "user"), num_outputs=1, aliased_outputs=())
    return GraphRunner(added, facts, CpuBackend(), CaptureOptions(**options))


class MadeVariant:
    """An artifact whose graph takes the arguments of the call."""

    def __init__(self, run: GraphRunner | EagerRunner) -> None:
        self.runner, self.stored = run, SimpleNamespace(sha256=DIGEST)

    def inputs_of(self, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
        return args

    def gear_inputs(self, args: tuple[Any, ...], kwargs: Any) -> list[tuple[Any, ...]]:
        return [args]

    def capture(self, args: tuple[Any, ...], kwargs: Any) -> None:
        self.runner.prepare(*args)


@dataclass
class MadeUnit:
    name: str
    call: Any
    variant: Any
    signatures: tuple[str, ...] = field(default=())


def unit(name: str, size: int, variant: MadeVariant | None) -> Any:
    call = SimpleNamespace(args=(CACHE.clone(), torch.ones(size)), kwargs={})
    return MadeUnit(name=name, call=call, variant=variant)


def planned(*sizes: int, artifact: str = DIGEST, cache: int = 4) -> tuple[CaptureEntry, ...]:
    made = []
    for size in sizes:
        shapes = runner().shapes_for((torch.zeros(cache), torch.ones(size)))
        assert shapes is not None
        made.append(CaptureEntry(function="M.f", signature=shapes.to_text(artifact)))
    return tuple(made)


def proposed(units: list[Any], plan: tuple[CaptureEntry, ...]) -> list[tuple[str, int, bool]]:
    return [(item.function, item.num_elements, item.planned) for item in rank_captures.propose(units, plan)]


def test_calls_are_proposed_and_then_what_the_plan_adds() -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    assert proposed(units, planned(8, 2)) == [("M.f", 6, False), ("M.f", 12, True)]


def test_plan_that_names_a_shape_twice_is_proposed_once() -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    assert len(proposed(units, planned(8, 8))) == 2


def test_call_that_was_not_loaded_is_proposed_by_its_arguments() -> None:
    assert proposed([unit("M.f", 2, None)], planned(8)) == [("M.f", 6, False)]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (planned(8, cache=5), "mutated input input 0 is (4,) here, and was (5,) where it was planned"),
        ((CaptureEntry(function="M.f", signature="int64[1, 8]"),), "M.f of the plan: "),
        (planned(8, artifact=OTHER), "M.f of the plan has artifact cdcdcdcdcdcd"),
    ],
    ids=["another cache", "no plan", "another artifact"],
)
def test_plan_that_does_not_fit_is_left_out_with_the_reason(
    plan: tuple[CaptureEntry, ...], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="warmrank.worker.rank.captures"):
        assert len(proposed([unit("M.f", 2, MadeVariant(runner()))], plan)) == 1
    assert reason in caplog.text


def test_plan_beyond_the_limit_is_left_out() -> None:
    units = [unit("M.f", 2, MadeVariant(runner(limit=2)))]
    assert proposed(units, planned(8, 7, 6)) == [("M.f", 6, False), ("M.f", 12, True)]


def test_function_that_is_never_captured_gets_nothing_of_the_plan() -> None:
    units = [unit("M.f", 2, MadeVariant(runner(eager=True)))]
    assert proposed(units, planned(8)) == [("M.f", 6, False)]


def test_function_whose_kernels_run_as_they_are_takes_no_step() -> None:
    facts = GraphFacts(input_classes=("mutated", "user"), num_outputs=1, aliased_outputs=())
    direct = MadeVariant(EagerRunner(added, facts, CpuBackend()))
    units = [unit("M.f", 2, direct), unit("M.g", 3, MadeVariant(runner()))]
    assert proposed(units, planned(8)) == [("M.g", 7, False)]


def test_step_captures_and_leaves_the_mutated_input_as_it_was() -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    for step in rank_captures.propose(units, planned(8)):
        rank_captures.capture(units, step)
    run = units[0].variant.runner
    assert [shapes.inputs[1].sizes for shapes in run.shapes()] == [(2,), (8,)]
    assert torch.equal(units[0].call.args[0], CACHE)


def test_planned_shape_that_the_graph_cannot_take_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    *_, step = rank_captures.propose(units, planned(0))
    with caplog.at_level(logging.WARNING, logger="warmrank.worker.rank.captures"):
        rank_captures.capture(units, step)
    assert "not captured in advance: M.f of the plan: " in caplog.text
    assert units[0].variant.runner.shapes() == ()


def test_manifest_lists_what_is_captured_under_the_call_that_needs_it() -> None:
    variant = MadeVariant(runner())
    units = [unit("M.f", 2, variant), unit("M.f[1]", 6, variant)]
    for step in rank_captures.propose(units, planned(8)):
        rank_captures.capture(units, step)
    found = rank_captures.captured(units)
    (first, second), (third,) = found["M.f"], found["M.f[1]"]
    assert (first, second, third) == tuple(entry.signature for entry in planned(8, 2, 6))


def test_what_a_check_captured_counts_to_the_first_call_of_its_artifact() -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    rank_captures.propose(units, ())
    for size in (9, 9, 7):  # 7 comes once, and is not captured
        units[0].variant.runner(CACHE.clone(), torch.ones(size))
    assert rank_captures.captured(units) == {"M.f": tuple(entry.signature for entry in planned(9))}
