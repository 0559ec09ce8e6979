"""Traces: what Dynamo gives, what is refused by name, and the frame in another process."""

from __future__ import annotations

import dataclasses
import inspect
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils as originals
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.support.devices import fake_world
from tests.support.faulty import Faulty
from tests.support.small_models import Cached, Plain, Unfit
from tests.support.tracing import bound, compiled, misfits, tells_arguments, traced
from warmrank.worker.compile.compiler import portable_frame
from warmrank.worker.errors import FunctionRaised, GraphBreak, NotPortable
from warmrank.worker.runtime.artifact import Frame
from warmrank.worker.runtime.find import function_of
from warmrank.worker.runtime.variant import StandIns, bind
from warmrank.worker.torch_private.lowering import LoweredGraph
from warmrank.worker.torch_private.symbols import Symbols, free_symbols, size_text
from warmrank.worker.torch_private.tracing import Trace

PLAIN_ROWS = torch.ones(2, 4)


@pytest.fixture(scope="module")
def store() -> Trace:
    """A method with a parameter, a buffer that it writes to, and a dynamic input."""
    return traced(Cached().store, PLAIN_ROWS)


def unseen(x: torch.Tensor) -> torch.Tensor:
    return x + 1


torch._dynamo.allow_in_graph(unseen)


def test_capture_lifts_parameters_and_buffers_to_inputs(store: Trace) -> None:
    sources = [item.source for item in store.lowered.inputs if item.is_tensor]
    assert [source.replace('"', "'") for source in sources] == [
        "L['self']._buffers['cache']",
        "L['x']",
        "L['self']._modules['linear']._parameters['weight']",
        "L['self']._modules['linear']._parameters['bias']",
    ]


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


def shape_conditions(model: nn.Module, x: torch.Tensor) -> str:
    guards = traced(model.forward, x).guards
    return " and ".join(text for guard in guards if guard.kind == "SHAPE_ENV" for text in guard.conditions)


def test_sizes_that_happen_to_be_equal_are_not_bound_to_each_other() -> None:
    assert "x'].size()[0] == " not in shape_conditions(nn.ReLU(), torch.ones(4, 4).clone())


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
    where = f"faulty.py:{line_of(name, line)} in Faulty.{name}"
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


ROWS = torch.arange(8.0).reshape(2, 4)
TABLE = torch.full((4,), 2.0)
COUNT = 0


@dataclasses.dataclass
class Batch:
    rows: torch.Tensor
    kind: str


class Shapes(nn.Module):
    """Arguments and outputs of every form."""

    def nested(self, batch: Batch, caches: list[torch.Tensor], **named: Any) -> dict[str, Any]:
        y = batch.rows + caches[1] * named["more"]["x"]
        return {"y": y, "pair": (y * 2, [y * 3]), "kind": batch.kind, "size": y.shape, "none": None}

    def dtype(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.dtype, torch.device]:
        return x * 2, x.dtype, x.device

    def by_global(self, x: torch.Tensor) -> torch.Tensor:
        return x * TABLE

    def sets_global(self, x: torch.Tensor) -> torch.Tensor:
        global COUNT  # noqa: PLW0603 - that is what is refused
        COUNT = 1
        return x * 2

    def keyword_only(self, x: torch.Tensor, /, y: int = 3, *, z: float = 0.5) -> torch.Tensor:
        return x * y + z


def frame_of(method: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Frame, Trace]:
    trace = traced(method, *args, **kwargs)
    return portable_frame(trace, function_of(bound(method))), trace


def bound_frame(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """The frame of a method around its own ATen graph, as a function of the method's arguments."""
    frame, trace = frame_of(method, *args, **kwargs)
    reread = Frame(code=bytes(frame.code), names=json.loads(json.dumps(frame.names)))
    function = bind(reread, function_of(bound(method)), trace.lowered.graph)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return function(bound(method).__self__, *args, **kwargs)

    return call


# What goes in and comes out.


def test_frame_unpacks_nested_arguments_and_packs_nested_outputs() -> None:
    model = Shapes()
    batch, caches, named = Batch(ROWS, "prompt"), [ROWS, ROWS * 2], {"x": ROWS}
    expected = model.nested(batch, caches, more=named)
    found = bound_frame(model.nested, batch, caches, more=named, dynamic=False)(batch, caches, more=named)
    assert list(found) == list(expected)
    assert torch.equal(found["pair"][1][0], expected["pair"][1][0])
    assert (found["kind"], found["size"], found["none"]) == ("prompt", torch.Size([2, 4]), None)


def test_error_that_passes_through_a_frame_can_be_printed() -> None:
    def failing(*inputs: Any) -> Any:
        msg = "the kernel failed"
        raise RuntimeError(msg)

    frame, _ = frame_of(Plain().affine, ROWS)
    function = bind(frame, function_of(bound(Plain().affine)), failing)
    with pytest.raises(RuntimeError) as raised:
        function(Plain(), ROWS)
    text = "".join(traceback.format_exception(raised.value))
    assert '"<warmrank frame>", line 1, in affine' in text
    assert text.endswith("RuntimeError: the kernel failed\n")


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {"x": 2}), ((ROWS, 3, 0.5), {})])
def test_frame_refuses_arguments_that_the_method_does_not_take(args, kwargs):
    with pytest.raises(TypeError, match=r"keyword_only\(\)"):
        bound_frame(Shapes().keyword_only, ROWS)(*args, **kwargs)


def test_frame_reads_a_global_as_it_is_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    call = bound_frame(Shapes().by_global, ROWS)
    monkeypatch.setitem(globals(), "TABLE", torch.full((4,), 5.0))
    assert torch.equal(call(ROWS), ROWS * 5)


# What it writes to.


def test_method_that_sets_a_global_is_refused_by_name() -> None:
    with pytest.raises(NotPortable, match=r"Shapes.sets_global sets the global COUNT") as raised:
        frame_of(Shapes().sets_global, ROWS)
    assert raised.value.what == "COUNT"


# What is kept.


def test_global_with_a_name_of_the_frames_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__compiled_fn", [1.0])

    class Returns(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return x * 2, returned()

    def returned() -> object:
        return __compiled_fn  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(NotPortable, match="__compiled_fn"):
        compiled(Returns().forward, torch.ones(2, 4))


STAND_INS = StandIns("torch._dynamo.utils")
TENSOR = torch.arange(12.0).reshape(3, 4)[1:]


@dataclasses.dataclass
class Options:
    width: int = 1


class Guarded:
    """Its own ``__setattr__`` is what must be gone around."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(name)


def started(count: int) -> Any:
    iterator = iter((10, 11, 12, 13))
    for _ in range(count):
        next(iterator)
    return iterator


CALLS: list[tuple[str, Callable[[], tuple[Any, ...]]]] = [
    ("object_new", lambda: (Options,)),
    ("dict_getitem", lambda: ({"a": 1}, "a")),
    ("list_getitem", lambda: ([1, 2], 1)),
    ("iter_next", lambda: (iter([5]),)),
    ("dataclass_fields", lambda: (Options(),)),
    ("call_size", lambda: (TENSOR, 1)),
    ("call_stride", lambda: (TENSOR, 0)),
    ("call_storage_offset", lambda: (TENSOR,)),
    ("dict_keys_getitem", lambda: ({"a": 1, "b": 2}, 1)),
    ("set_getitem", lambda: ({7}, 0)),
    ("tuple_iterator_getitem", lambda: (started(1), 1)),
]


def comparable(value: Any) -> Any:
    return vars(value) if isinstance(value, Options) else value


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_stand_in_gives_what_the_original_gives(name: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
    found = getattr(STAND_INS, name)(*arguments())
    expected = getattr(originals, name)(*arguments())
    assert type(found) is type(expected)
    assert comparable(found) == comparable(expected)


def test_stand_in_sets_and_deletes_an_attribute_past_the_class() -> None:
    instance = Guarded()
    STAND_INS.object_setattr_ignore_descriptor(instance, "a", 1)
    assert vars(instance) == {"a": 1}
    STAND_INS.object_delattr_ignore_descriptor(instance, "a")
    assert vars(instance) == {}
