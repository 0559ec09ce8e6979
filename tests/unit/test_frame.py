"""The frame: arguments in, outputs out, in another process than the one that traced it."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo.utils as originals
from torch import nn

from tests.support.small_models import Plain
from tests.support.tracing import bound, compiled, traced
from warmrank.worker.compile.compiler import portable_frame
from warmrank.worker.errors import NotPortable
from warmrank.worker.runtime.artifact import Frame
from warmrank.worker.runtime.find import function_of
from warmrank.worker.runtime.variant import StandIns, bind
from warmrank.worker.torch_private.tracing import Trace

ROWS = torch.arange(8.0).reshape(2, 4)
TABLE = torch.full((4,), 2.0)
COUNT = 0


@dataclasses.dataclass
class Batch:
    rows: torch.Tensor
    kind: str


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


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
