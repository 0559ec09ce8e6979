"""The capture plan, what a rank makes of it, and the memory that captured graphs share on the CPU."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import warmrank
from tests.support.devices import runner, warm
from tests.support.in_process import InProcessLauncher
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import parse as config_of
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.stages import order
from warmrank.worker.capture.plan import PlannedInput, Shapes, inputs_for, shapes_of
from warmrank.worker.capture.plan import parse as parse_plan
from warmrank.worker.devices.cpu_graph import ALIGNMENT, Lifetime, planned
from warmrank.worker.rank import captures
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import CaptureProposal, FunctionProbe, FunctionResult, PlannedCapture
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.runtime.runner import GraphRunner, InputLayout

DIGEST = "ab" * 32
SIZES = st.lists(st.integers(0, 64), max_size=4)


def layout(*classes: str, clone_input: bool = True, of_module: tuple[int, ...] = ()) -> InputLayout:
    facts = GraphFacts(
        input_classes=classes,
        num_outputs=1,
        aliased_outputs=(),
        input_names=tuple(f"x{index}" for index in range(len(classes))),
        module_inputs=of_module,
    )
    return InputLayout(facts, clone_input=clone_input, frozen_parameters=False)


def shapes(*inputs: Any, classes: tuple[str, ...]) -> Shapes:
    found = shapes_of(layout(*classes), inputs)
    assert found is not None
    return found


@st.composite
def any_shapes(draw: st.DrawFn) -> Shapes:
    sizes = draw(st.lists(SIZES, max_size=3))
    return Shapes(
        inputs=tuple(
            PlannedInput(
                position=index,
                sizes=tuple(each),
                strides=tuple(draw(st.lists(st.integers(0, 99), min_size=len(each), max_size=len(each)))),
            )
            for index, each in enumerate(sizes)
        ),
        numbers=tuple(
            (len(sizes) + index, value)
            for index, value in enumerate(
                draw(
                    st.lists(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
                )
            )
        ),
    )


@given(any_shapes())
def test_text_round_trips(planned: Shapes) -> None:
    assert parse_plan(planned.to_text(DIGEST)) == (DIGEST, planned)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"artifact": 7},
        {"inputs": [[0, [-1]]]},
        {"inputs": [[0, [True]]]},
        {"inputs": [[0, [2, 2], [1]]]},
        {"inputs": [[0]]},
        {"inputs": [[0, [1 << 41]]]},
        {"inputs": [[0, [0, 1 << 40, 1 << 40]]]},
        {"inputs": [[0, [2], [1 << 41]]]},
        {"inputs": 3},
        {"numbers": [[0, "1"]]},
    ],
    ids=str,
)
def test_text_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    plan = {"artifact": DIGEST, "format": 1, "inputs": [[0, [2]]], "numbers": []}
    with pytest.raises(ValueError, match=r"."):
        parse_plan(json.dumps({**plan, **changed}))


def test_user_inputs_are_zeros_of_the_planned_shape_and_the_rest_is_the_examples() -> None:
    classes = ("state", "mutated", "user", "number")
    inputs = layout(*classes, of_module=(0,))
    weight, cache = torch.ones(4), torch.ones(3)
    planned = shapes_of(inputs, (weight, cache, torch.ones(5, 2, dtype=torch.int32), 9))
    assert planned is not None
    made = inputs_for(planned, inputs, (weight, cache, torch.ones(1, 2, dtype=torch.int32), 3))
    assert not isinstance(made, str)
    assert made[0] is weight
    assert made[1] is cache
    assert torch.equal(made[2], torch.zeros(5, 2, dtype=torch.int32))
    assert made[2].dtype == torch.int32
    assert made[3] == 9


def test_user_input_that_is_not_copied_has_to_be_the_real_one() -> None:
    planned = shapes(torch.ones(8), classes=("user",))
    assert isinstance(inputs_for(planned, layout("user", clone_input=False), (torch.ones(4),)), str)


pytestmark = pytest.mark.usefixtures("no_grad")

ARTIFACT, OTHER = "ab" * 32, "cd" * 32
CACHE = torch.zeros(4)


def added(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(x.sum())
    return (cache.sum() + x[0].view(1)[:1] + x,)


def planned_runner() -> GraphRunner:
    return runner(added, "mutated", "user")


class MadeVariant:
    """An artifact whose graph takes the arguments of the call."""

    def __init__(self, run: GraphRunner) -> None:
        self.runner, self.stored = run, SimpleNamespace(sha256=ARTIFACT)

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

    def bound(self) -> Any:
        assert self.variant is not None
        return self.variant


def unit(name: str, size: int, variant: MadeVariant | None) -> Any:
    call = SimpleNamespace(args=(CACHE.clone(), torch.ones(size)), kwargs={})
    return MadeUnit(name=name, call=call, variant=variant)


def plan_of(*sizes: int, artifact: str = ARTIFACT, cache: int = 4) -> tuple[PlannedCapture, ...]:
    made = []
    for size in sizes:
        shapes = planned_runner().shapes_for((torch.zeros(cache), torch.ones(size)))
        assert shapes is not None
        made.append(PlannedCapture(function="M.f", signature=shapes.to_text(artifact)))
    return tuple(made)


def proposed(units: list[Any], plan: tuple[PlannedCapture, ...]) -> list[tuple[str, int, bool]]:
    return [(item.function, item.num_elements, item.planned) for item in captures.propose(units, plan)]


def test_calls_are_proposed_and_then_what_the_plan_adds() -> None:
    units = [unit("M.f", 2, MadeVariant(planned_runner()))]
    assert proposed(units, plan_of(8, 2)) == [("M.f", 6, False), ("M.f", 12, True)]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (plan_of(8, cache=5), "mutated input input 0 is (4,) here, and was (5,) where it was planned"),
        ((PlannedCapture(function="M.f", signature="int64[1, 8]"),), "M.f of the plan: "),
        (plan_of(8, artifact=OTHER), "M.f of the plan: it has artifact cdcdcdcdcdcd"),
    ],
    ids=["another cache", "no plan", "another artifact"],
)
def test_plan_that_does_not_fit_is_left_out_with_the_reason(plan, reason, caplog):
    with caplog.at_level(logging.DEBUG, logger="warmrank.worker.rank.captures"):
        assert len(proposed([unit("M.f", 2, MadeVariant(planned_runner()))], plan)) == 1
    assert reason in caplog.text


def test_step_captures_and_leaves_the_mutated_input_as_it_was() -> None:
    units = [unit("M.f", 2, MadeVariant(planned_runner()))]
    for step in captures.propose(units, plan_of(8)):
        captures.capture(units, step)
    run = units[0].variant.runner
    assert [shapes.inputs[1].sizes for shapes in run.shapes()] == [(2,), (8,)]
    assert torch.equal(units[0].call.args[0], CACHE)


def sized(function: str, size: int, artifact: str = "") -> CaptureProposal:
    """Of a call; of the plan, if an artifact is named."""
    return CaptureProposal(
        function=function,
        signature=f"{artifact} {size}" if artifact else "",
        shapes=str(size) if artifact else "",
        num_elements=size,
        planned=bool(artifact),
    )


def test_all_ranks_take_the_same_call_in_a_step_the_largest_of_any_rank_first() -> None:
    proposals = {0: (sized("f", 1), sized("g", 7)), 1: (sized("f", 2), sized("g", 8))}
    steps = order(proposals, ())
    found = [{rank: item.function for rank, item in step.items()} for step in steps]
    assert found == [{0: "g", 1: "g"}, {0: "f", 1: "f"}]


@pytest.mark.parametrize("artifact", ["a", "b"])
def test_planned_shape_is_captured_by_all_ranks_with_the_function_or_by_none(artifact: str) -> None:
    one, other, slots = sized("f", 5, "a"), sized("f", 5, artifact), {(0, "f"), (1, "f")}
    assert order({0: (one,), 1: (other,)}, slots) == ({0: one, 1: other},)
    assert order({0: (one,), 1: ()}, slots) == ()


def test_order_is_the_same_whatever_the_order_of_proposals() -> None:
    items = (sized("f", 5, "a"), sized("g", 5, "b"), sized("f", 3, "a"))
    slots = {(0, "f"), (0, "g")}
    assert order({0: items}, slots) == order({0: items[::-1]}, slots)


class WatchedRank(RankWorker):
    """Notes the rows that were captured when the first call came."""

    seen: list[list[int]]

    def first_call(self, place: int) -> tuple[FunctionResult | FunctionProbe, ...]:
        (unit,) = self._units.values()
        assert unit.variant is not None
        type(self).seen.append([shapes.inputs[0].sizes[0] for shapes in unit.variant.runner.shapes()])
        return super().first_call(place)


def test_later_launch_captures_the_plan_before_its_first_call_and_the_largest_first(tmp_path: Path) -> None:
    WatchedRank.seen = []
    for node in ("n1", "n2"):
        config = config_of(
            {
                "name": "sized",
                "workload": {"entrypoint": "tests.support.workloads:sized"},
                "ranks": 1,
                "cache_dir": str(tmp_path / node),
                "store": store_config(tmp_path / "store"),
            }
        )
        launch(config, launcher=InProcessLauncher(WatchedRank))
    assert WatchedRank.seen[1:] == [[8, 5, 2]]


def step(x: torch.Tensor) -> tuple[Any, ...]:
    y = x * 2
    z = y + 1
    return (z * 1.0,)


def numbers(size: int) -> torch.Tensor:
    return torch.arange(float(size))


def runner_of(*sizes: int, **options: Any) -> GraphRunner:
    """A runner of `step` that captures at the next call of each of these sizes."""
    run = runner(step, "user", **options)
    for size in sizes:
        warm(run, numbers(size))
    return run


POOLS: dict[str, Callable[[], dict[str, Any]]] = {
    "mode one": lambda: {"pool": warmrank.graph_pool_handle("cpu")},
    "mode two": dict,
    "neither": lambda: {"pool_for_each_shape": True},
}
CLONES = {"cloned": {}, "not cloned": {"clone_input": False}}


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest) -> dict[str, Any]:
    return POOLS[request.param]()


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
def test_output_of_another_shape_fed_in_is_read_correctly(pool, clone):
    run = runner_of(4, 8, **pool, **clone)
    run(numbers(4))
    for _ in range(2):
        (large,) = run(numbers(8))
        assert torch.equal(run(large[:4])[0], (numbers(4) * 2 + 1) * 2 + 1)


def test_input_in_the_pool_that_is_not_copied_is_told_and_not_overwritten_by_its_own_graph(caplog):
    def twice(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        cache.add_(1.0)
        y = x * 3
        return ((y + cache) * 1.0,)

    handle = warmrank.graph_pool_handle("cpu")
    first = runner_of(8, pool=handle)
    second = warm(runner(twice, "mutated", "user", pool=handle), numbers(8), numbers(8))
    (cache,) = first(numbers(8))
    with caplog.at_level(logging.WARNING, logger="torchair"):
        for number in range(1, 4):
            result = second(cache, numbers(8))[0]
            assert torch.equal(cache, numbers(8) * 2 + 1 + number)
            assert torch.equal(result, numbers(8) * 3 + cache)
    assert caplog.text.count("lies in memory that a captured graph returned") == 1


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
def test_outputs_fed_back_as_inputs_do_not_overwrite_each_other(pool, clone):
    def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        return x * 2 + y, y * 2 + x

    run = warm(runner(mixed, "user", "user", **pool, **clone), numbers(8), numbers(8))
    x, y = numbers(8), numbers(8) + 1
    for _ in range(4):
        expected = mixed(x.clone(), y.clone())
        y, x = run(x, y)
        assert torch.equal(y, expected[0])
        assert torch.equal(x, expected[1])


def test_threads_of_two_functions_with_one_pool_do_not_mix() -> None:
    handle = warmrank.graph_pool_handle("cpu")
    runs = [runner(step, "user", pool=handle, clone_output=True) for _ in range(2)]

    def call(value: int) -> bool:
        with torch.no_grad():
            x = torch.full((256,), float(value))
            return torch.equal(runs[value % 2](x)[0], x * 2 + 1)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(400)))


def block(size_bytes: int, first: int, last: int) -> Lifetime:
    return Lifetime(size_bytes=size_bytes, first=first, last=last)


LIFETIMES = st.builds(
    lambda size, first, length: block(size, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 30),
    st.integers(0, 30),
)


@given(st.lists(LIFETIMES, max_size=40))
def test_blocks_that_are_needed_in_one_step_do_not_overlap(blocks: list[Lifetime]) -> None:
    offsets, size_bytes = planned(blocks)
    placed = list(zip(blocks, offsets, strict=True))
    for position, (one, begin) in enumerate(placed):
        assert begin % ALIGNMENT == 0
        assert begin + one.size_bytes <= size_bytes
        for other, start in placed[position + 1 :]:
            at_once = one.first <= other.last and other.first <= one.last
            at_once = at_once and one.size_bytes > 0 and other.size_bytes > 0  # nothing overlaps with nothing
            apart = begin + one.size_bytes <= start or start + other.size_bytes <= begin
            assert not at_once or apart
