"""Captures of a rank: what it proposes, how it takes a step, its manifest, and the streams of an NPU."""

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
from warmrank.worker.devices.failures import Captures, needed, not_capturable, problem
from warmrank.worker.errors import NotCapturable
from warmrank.worker.rank import captures
from warmrank.worker.rank.captures import graphs_of
from warmrank.worker.results import CaptureProposal
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
    return [(item.function, item.num_elements, item.planned) for item in captures.propose(units, plan)]


def test_calls_are_proposed_and_then_what_the_plan_adds() -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    assert proposed(units, planned(8, 2)) == [("M.f", 6, False), ("M.f", 12, True)]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (planned(8, cache=5), "mutated input input 0 is (4,) here, and was (5,) where it was planned"),
        ((CaptureEntry(function="M.f", signature="int64[1, 8]"),), "M.f of the plan: "),
        (planned(8, artifact=OTHER), "M.f of the plan has artifact cdcdcdcdcdcd"),
    ],
    ids=["another cache", "no plan", "another artifact"],
)
def test_plan_that_does_not_fit_is_left_out_with_the_reason(plan, reason, caplog):
    with caplog.at_level(logging.DEBUG, logger="warmrank.worker.rank.captures"):
        assert len(proposed([unit("M.f", 2, MadeVariant(runner()))], plan)) == 1
    assert reason in caplog.text


def test_step_captures_and_leaves_the_mutated_input_as_it_was() -> None:
    units = [unit("M.f", 2, MadeVariant(runner()))]
    for step in captures.propose(units, planned(8)):
        captures.capture(units, step)
    run = units[0].variant.runner
    assert [shapes.inputs[1].sizes for shapes in run.shapes()] == [(2,), (8,)]
    assert torch.equal(units[0].call.args[0], CACHE)


def test_manifest_lists_what_is_captured_under_the_call_that_needs_it() -> None:
    variant = MadeVariant(runner())
    units = [unit("M.f", 2, variant), unit("M.f[1]", 6, variant)]
    for step in captures.propose(units, planned(8)):
        captures.capture(units, step)
    found = captures.captured(units)
    (first, second), (third,) = found["M.f"], found["M.f[1]"]
    assert (first, second, third) == tuple(entry.signature for entry in planned(8, 2, 6))


TP = frozenset({"tp"})


@pytest.mark.parametrize(
    ("captures", "expansion", "expected"),
    [
        ((), "", 0),
        ((Captures(name="f", num_graphs=0, roles=TP),), "", 0),
        ((Captures(name="f", num_graphs=10),), "", 10),
        ((Captures(name="f", num_graphs=10, roles=TP),), "", 40 + 10 * 3),
        ((Captures(name="f", num_graphs=10, roles=TP),), "AIV", 10 * 2),
        ((Captures(name="f", num_graphs=10, num_side_streams=2),), "", 30),
        (
            (Captures(name="f", num_graphs=2, roles=TP), Captures(name="g", num_graphs=3, roles=TP)),
            "",
            40 + 5 * 3,
        ),
    ],
)
def test_streams_are_those_of_graphs_and_of_their_communicators(captures, expansion, expected):
    assert needed(captures, expansion=expansion) == expected


@pytest.mark.parametrize(("layers", "num_groups"), [(48, 1), (64, 2), (28, 0)])
def test_count_agrees_with_the_rule_of_vllm_ascend(layers: int, num_groups: int) -> None:
    sizes = int((1800 - num_groups * 40) / (layers + 1) / (1 + num_groups * 2))
    roles = frozenset(str(number) for number in range(num_groups))

    def piecewise(num_sizes: int) -> str:
        graphs = (Captures(name="layers", num_graphs=(layers + 1) * num_sizes, roles=roles),)
        return problem(graphs, soc="Ascend910B2")

    assert piecewise(sizes) == ""
    assert piecewise(sizes + 1) != ""


# Messages of vllm-ascend#9691, #8393 and #9564.
NO_STREAM = (
    "capture_begin:../torch_npu/csrc/core/npu/NPUGraph.cpp:230 NPU function error: "
    "c10_npu::acl::AclmdlRICaptureBegin(capture_stream_, capture_mode), error code is 207008\n"
    "[Error]: Stream resources are insufficient."
)
NO_RESOURCE = "stream wait event failed, runtime result = 207005[FUNC:ReportCallError][FILE:log_inner.cpp]"


@pytest.mark.parametrize(
    "text",
    [
        NO_STREAM,
        NO_RESOURCE,
        "Insufficient_Stream_Resources(EL0009): none left",
        "driver error:no stream resource",
    ],
)
def test_error_of_a_capture_without_streams_says_what_to_change(text: str) -> None:
    found = not_capturable(RuntimeError(text), "npu")
    assert isinstance(found, NotCapturable)
    assert found.exhausted == "streams"
    assert text.partition("\n")[0] in str(found)
    assert "fewer gears or shapes" in str(found)


# --- what a rank will capture ---


def made_unit(name: str, digest: str, signatures: tuple[str, ...], *roles: str, code: str = "") -> Any:
    sections = {"torchair.py": code.encode()} if code else {}
    stored = SimpleNamespace(sha256=digest, artifact=SimpleNamespace(roles=roles, sections=sections))
    return SimpleNamespace(name=name, variant=SimpleNamespace(stored=stored), signatures=signatures)


def proposal(function: str, signature: str = "", *, planned: bool = False) -> CaptureProposal:
    return CaptureProposal(function=function, signature=signature, shapes="", num_elements=1, planned=planned)


def test_calls_of_equal_shapes_share_a_graph_and_gears_do_not() -> None:
    units = [
        made_unit("f", "a", ("1", "2"), "tp"),
        made_unit("f[1]", "a", ("2",), "tp"),
        made_unit("g", "b", ("1",)),
    ]
    steps = [proposal("f"), proposal("f[1]"), proposal("g"), proposal("f", "3", planned=True)]
    assert graphs_of(units, steps) == (
        Captures(name="f", num_graphs=3, roles=TP),
        Captures(name="g", num_graphs=1),
    )
