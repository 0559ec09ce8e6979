"""Traces: what Dynamo gives, what is refused by name, and the frame in another process."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.support.devices import fake_world
from tests.support.small_models import Faulty, Unfit
from tests.support.tracing import compiled, misfits, tells_arguments, traced
from warmrank.worker.errors import FunctionRaised, GraphBreak, NotPortable
from warmrank.worker.torch_private.lowering import LoweredGraph
from warmrank.worker.torch_private.symbols import Symbols, free_symbols, size_text

PLAIN_ROWS = torch.ones(2, 4)


def unseen(x: torch.Tensor) -> torch.Tensor:
    return x + 1


torch._dynamo.allow_in_graph(unseen)


def test_capture_of_a_branch_on_data_gives_dynamos_reason_and_the_line() -> None:
    with pytest.raises(GraphBreak) as raised:
        traced(Unfit().breaks, PLAIN_ROWS)
    message = str(raised.value)
    assert "Unfit.breaks does not form one whole graph" in message
    assert "Data-dependent branching" in message
    assert "if x.sum() > 0:" in message
    assert 'small_models.py", line' in message
    assert raised.value.function == "Unfit.breaks"


def test_function_that_dynamo_does_not_look_into_is_refused_by_name() -> None:
    class Blind(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return unseen(x) * 2

    with pytest.raises(NotPortable, match=r"unseen is marked allow_in_graph"):
        traced(Blind().forward, PLAIN_ROWS)


def test_global_with_a_name_that_frames_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__builtins_dict__", "__compiled_fn", "__import_torch", "__object_1", "x_12_c34"):
        scope: dict[str, Any] = {"__name__": __name__, name: 3}
        exec(f"def reads(self, x): return x * {name}", scope)  # noqa: S102

        class Reads(nn.Module):
            forward = scope["reads"]

        with pytest.raises(NotPortable, match="rename it"):
            traced(Reads().forward, torch.ones(2))


def test_replaced_dataclass_has_the_names_of_its_class_as_condition():
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        size: int
        name: str = "a"

    class Replaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = Frozen(size=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * dataclasses.replace(self.held, name="x").size

    module = Replaces()
    assert misfits(compiled(module.forward, torch.ones(2)), module.forward, torch.ones(2)) == ()


def test_part_of_a_mesh_that_the_function_asks_for_is_refused_by_name() -> None:
    class Asks(nn.Module):
        mesh: Any

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.mesh["tp"].size()

    with fake_world(rank=1, world_size=4):
        module = Asks()
        module.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(NotPortable, match="DeviceMesh"):
            compiled(module.forward, torch.ones(3))


def marked_nonstrict(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_function_that_is_not_traced_strictly_is_refused() -> None:
    marked = torch._dynamo.nonstrict_trace(marked_nonstrict)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return marked(x)

    with pytest.raises(NotPortable, match="nonstrict_trace"):
        traced(Calls().forward, PLAIN_ROWS)


def test_function_that_asks_for_a_base_is_refused_by_its_argument() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x._base is None else x * 3

    with pytest.raises(NotPortable, match=r"asks L\['x'\] for _base"):
        traced(Asks().forward, torch.ones(4, 4)[1:])


class Writes(nn.Module):
    """Writes to Python objects that were there before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, log: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        log.append(x)
        fresh = [x]
        fresh.append(x * 2)
        return fresh[1]


def test_writes_are_those_to_objects_of_before_the_call() -> None:
    trace_ = traced(Writes().forward, PLAIN_ROWS, [])
    assert {(write.source, write.attribute) for write in trace_.writes} == {
        ("L['self']", "calls"),
        ("L['log']", ""),
    }


class Stacks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, x))


@pytest.fixture(scope="module")
def stacked() -> LoweredGraph:
    return traced(Stacks().forward, torch.ones(6, 4)).lowered


def test_size_of_a_result_is_an_expression_of_the_inputs(stacked: LoweredGraph) -> None:
    symbols = Symbols(stacked)
    name = symbols.of_size("L['x']", 0)
    size = symbols.outputs[0].shape[0]
    assert free_symbols(size) == {name}
    assert eval(size_text(size), {name: 5}) == 10  # noqa: S307 - an expression of sizes


WIDE = torch.ones(2, 8)


def raised(name: str) -> FunctionRaised:
    with pytest.raises(FunctionRaised) as caught:
        traced(getattr(Faulty(), name), WIDE)
    return caught.value


def line_of(name: str, text: str) -> int:
    lines, first = inspect.getsourcelines(getattr(Faulty, name))
    return first + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("bad", "ValueError: bad shape in attention", "raise"),
        ("wide", "RuntimeError: a and b must have same reduction dim, but got [2, 7] X [8, 8].", "linear"),
        ("adds", "TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType'", "None"),
        pytest.param("lacks", "KeyError: 'a'", "return", marks=tells_arguments),
        ("wants", "AttributeError: 'Faulty' object has no attribute 'nothing'", "nothing"),
        ("asserts", 'AssertionError: assert x.dim() > 3, "too flat"', "assert x"),
        ("calls", "TypeError: Too many positional arguments: got 3, expected 2", "linear"),
        ("misspells", "NameError: name 'no_such_name' is not defined", "no_such_name"),
    ],
)
def test_exception_is_named_with_the_line_of_the_method(name: str, said: str, line: str) -> None:
    error = raised(name)
    where = f"small_models.py:{line_of(name, line)} in Faulty.{name}"
    assert (error.function, error.reason, error.where) == (f"Faulty.{name}", said, where)
    assert str(error).startswith(f"{said} ({where}). ")


def test_exception_that_the_caller_handles_is_not_taken_for_the_methods(capfd) -> None:
    try:
        Path("/no/such/file").read_text()
    except FileNotFoundError:
        error = raised("wide")
    assert error.reason.startswith("RuntimeError: a and b must have same reduction dim")
    assert not capfd.readouterr().err


@pytest.mark.parametrize("name", ["reads", "stops"])
def test_graph_break_stays_one(name: str) -> None:
    with pytest.raises(GraphBreak, match=f"Faulty.{name} does not form one whole graph"):
        traced(getattr(Faulty(), name), WIDE)
