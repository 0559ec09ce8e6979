"""Gears: allowed sizes, marks, padding, capture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.support.tracing import cached, compiles_ahead, in_mode, outcome
from warmrank.inference import get_backend, set_dim_gears
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import GearError
from warmrank.worker.gears.model import MAX_COMBINATIONS, checked_gears, covering, merged
from warmrank.worker.gears.rules import geared_arguments
from warmrank.worker.torch_private.marks import mark_geared

pytestmark = pytest.mark.usefixtures("no_grad")


@dataclass
class _Batch:
    x: torch.Tensor
    rest: list[Any]


def _takes_more(self: Any, batch: Any, *more: Any, y: Any = None) -> None: ...


_takes: Any = _takes_more


def test_geared_arguments_are_found_wherever_they_stand() -> None:
    tensors = [torch.ones(2) for _ in range(5)]
    for tensor in tensors[:4]:
        set_dim_gears(tensor, {0: [2, 4]})
    batch = _Batch(x=tensors[0], rest=[{"k": tensors[1]}, (tensors[2],), tensors[4]])
    found = geared_arguments(_takes, (batch, tensors[0]), {"y": tensors[3]})
    assert [where for where, _ in found] == ["batch.x", "batch.rest[0]['k']", "batch.rest[1][0]", "y"]


@pytest.mark.parametrize(
    ("shape", "gears", "words"),
    [
        ((1,), {0: [1]}, r"for dim index 0 in dim_gears must be in range \[2, 100\], but got 1\."),
        ((1,), {0: list(range(1, 102))}, r"in range \[2, 100\], but got 101\."),
        ((2, 2), {2: [2, 4]}, r"Dim index in dim_gears must be in range \[0, 1\], but got 2\."),
        ((2, 2), {-1: [2, 4]}, r"in range \[0, 1\], but got -1\."),
        ((), {0: [2, 4]}, r"in range \[0, -1\], but got 0\."),
        ((2, 2), {True: [2, 4]}, "must be an integer, but got <class 'bool'>"),
        ((2, 2), {0: {2, 4}}, "must be a list or tuple, but got <class 'set'>"),
        (
            (2, 2),
            {0: [4, True]},
            "Element at index 1 of value for dim index 0 in dim_gears must be an integer",
        ),
        ((2, 2), {0: [4, 0]}, r"Gear value at index 1 for dim index 0 must not be 0, but got 0\."),
        ((2, 2), {0: [4, -1]}, r"index 1 for dim index 0 must be a size of 1 or more, but got -1\."),
        ((2, 2), [2, 4], "expected a dict from dimension to gears"),
    ],
)
def test_gears_that_are_not_allowed_are_refused(shape: Any, gears: Any, words: str) -> None:
    with pytest.raises(GearError, match=words):
        checked_gears(shape, gears)
    tensor = torch.ones(shape)
    with pytest.raises(GearError, match=words):
        set_dim_gears(tensor, gears)
    assert not hasattr(tensor, "dim_gears")


GEARS = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@given(st.lists(GEARS, min_size=1, max_size=3))
def test_product_takes_all_with_all_each_once(gears: list[list[int]]) -> None:
    found = merged(gears, "product")
    assert len(found) == len(set(found))
    assert set(found) == set(itertools.product(*gears))


def test_a_hundred_combinations_are_allowed_and_no_more() -> None:
    assert len(merged([range(1, 11), range(1, 11)], "product")) == MAX_COMBINATIONS
    with pytest.raises(GearError, match="more than 100 combinations"):
        merged([range(1, 11), range(1, 12)], "product")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), unique=True, min_size=1),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_the_covering_combination_is_the_last_that_is_nowhere_smaller(combinations, sizes):
    ordered = sorted(combinations, key=lambda item: -item[0] * item[1])
    covers = [item for item in ordered if item[0] >= sizes[0] and item[1] >= sizes[1]]
    assert covering(ordered, sizes) == (covers[-1] if covers else None)


def marks_of(tensor: torch.Tensor) -> dict[str, object]:
    """What is written on a tensor; the ranges by their fields: Dynamo has a class of its own for them.

    That there are marks at all is an attribute since torch 2.13, and one that no earlier release reads.
    """
    found = dict(vars(tensor))
    found.pop("_has_dynamo_dim_marking", None)
    ranges = found.pop("_dynamo_dynamic_range", ())
    return {**found, "ranges": {(item.dim, item.min, item.max) for item in ranges}}


def test_mark_is_what_dynamos_own_function_writes() -> None:
    mine, dynamos = torch.ones(4, 4), torch.ones(4, 4)
    mark_geared(mine, {0: (2, 4)})
    torch._dynamo.mark_dynamic(dynamos, 0)
    assert marks_of(mine)
    assert marks_of(mine).items() <= marks_of(dynamos).items()


class Model(nn.Module):
    """One method for each thing that gears may meet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.rows: torch.Tensor
        self.register_buffer("rows", torch.zeros(16, 8))

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def mlp(self, x: torch.Tensor) -> tuple[torch.Tensor, int, torch.Size]:
        return functional.gelu(self.linear(x)), x.size(0), x.shape

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.linear(x).view(batch, length, 2, 4).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads)
        return mixed.transpose(1, 2).reshape(batch, length, width)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(0)

    def joined(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y])

    def written(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, at, x)
        return self.rows * 2

    def viewed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :1], x + 1

    def branching(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.size(0) > 2 else x * 3

    def squeezed(self, x: torch.Tensor) -> torch.Tensor:
        row = x.squeeze(0)
        return row * 2 if row.dim() == 2 else row * 3


def rows(count: int, *more: int) -> torch.Tensor:
    return torch.randn(count, *(more or (8,)))


def geared(tensor: torch.Tensor, *gears: int) -> torch.Tensor:
    set_dim_gears(tensor, {0: gears})
    return tensor


def same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-5)
    if isinstance(wanted, tuple) and type(wanted) is not torch.Size:
        return all(same(one, other) for one, other in zip(got, wanted, strict=True))
    return bool(got == wanted) and type(got) is type(wanted)


EXACT = {"gears": (1, 2, 8), "counts": (1, 2, 8, 1, 2, 8), "options": {}}
PADDED = {"gears": (2, 8), "counts": (1, 2, 3, 5, 8, 3), "options": {"on_gear_miss": "pad"}}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("given", "first"),
    [*((EXACT, first) for first in (1, 2, 8)), *((PADDED, first) for first in (1, 3, 8))],
)
@pytest.mark.parametrize(("name", "more"), [("mlp", (8,)), ("attention", (3, 8))])
def test_one_compile_serves_every_gear_also_one_of_one_and_padded_sizes(tmp_path, name, more, given, first):
    model = Model()
    function = cached(getattr(model, name), tmp_path, **given["options"])
    function(geared(rows(first, *more), *given["gears"]))
    compiled = function.last_result
    for count in given["counts"]:
        x = rows(count, *more)
        assert same(function(x), getattr(model, name)(x))
    assert function.last_result == compiled
    found, num_gears = function.variants[0].runner.statistics, len(given["gears"])
    assert (found.warm_up_runs, found.captures) == (num_gears, num_gears)


def test_a_shape_between_gears_is_an_error_that_says_all(tmp_path: Path) -> None:
    function = cached(Model().add, tmp_path)
    function(geared(rows(2), 2, 4), geared(rows(2), 2, 4))
    with pytest.raises(GearError) as caught:
        function(rows(3), rows(3))
    for part in ("x dimension 0 is 3", "y dimension 0 is 3", "(4, 4), (2, 2)", 'on_gear_miss="pad"'):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "first", "gears", "other", "said"),
    [
        ({}, 4, (2, 3, 4), 2, r"asks for .*x\.size\(0\)"),
        ({"on_gear_miss": "pad"}, 3, (2, 4), 1, "does not hold"),
    ],
)
def test_code_that_branches_on_a_size_is_never_run_with_another(tmp_path, options, first, gears, other, said):
    function = cached(Model().branching, tmp_path, **options)
    x = geared(rows(first), *gears)
    assert same(function(x), x * 2)
    with pytest.raises(GearError, match=said):
        function(rows(other))


@pytest.mark.parametrize("order", [(1, 2, 4), (4, 1, 2)])
def test_gear_that_the_code_treats_otherwise_is_compiled_alone(order: Sequence[int], tmp_path: Path) -> None:
    model = Model()
    for expected in ("compiled", "loaded"):
        function = cached(model.squeezed, tmp_path)
        for size in order:
            x = rows(size)
            assert same(function(geared(x, 1, 2, 4)), model.squeezed(x))
        for size in order:  # without gears each finds the variant that fits, whichever ran last
            x = rows(size)
            assert same(function(x), model.squeezed(x))
        has_gears = [variant.stored.artifact.facts.gears is not None for variant in function.variants]
        assert has_gears == [True] * 2
        assert outcome(function) == expected
        with pytest.raises(GearError, match="no gear for these sizes"):
            function(rows(3))


def test_tensors_load_what_was_made_with_their_gears(tmp_path: Path) -> None:
    model = Model()
    function = cached(model.mlp, tmp_path)
    for num, x in enumerate((rows(2), geared(rows(2), 2, 4), geared(rows(2), 2, 8)), start=1):
        function(x)
        assert len(function.variants) == num
    cached(model.mlp, tmp_path / "geared")(geared(rows(2), 2, 4))
    without, x = cached(model.mlp, tmp_path / "geared"), rows(3)
    assert same(without(x), model.mlp(x))
    assert outcome(without) == "compiled"
    again = cached(model.mlp, tmp_path / "geared")
    again(geared(rows(4), 2, 4))
    assert outcome(again) == "loaded"
    again(rows(2))
    assert len(again.variants) == 1


def test_all_gears_are_captured_ahead_largest_first(tmp_path: Path) -> None:
    function = cached(Model().mlp, tmp_path)
    variant = function.ensure((geared(rows(2), 2, 8, 4),), {})
    inputs = variant.gear_inputs((rows(2),), {})
    assert variant.stored.artifact.facts.gears is not None
    position = variant.stored.artifact.facts.gears.inputs[0].position
    counts = [call[position].shape[0] for call in inputs]
    assert counts == [8, 4, 2]
    variant.capture((rows(2),), {})
    for count in (2, 4, 8):
        function(rows(count))
    found = variant.runner.statistics
    assert (found.captures, found.replays, found.warm_up_runs) == (3, 3, 0)


@compiles_ahead
@pytest.mark.slow
def test_compiled_kernels_serve_every_gear(tmp_path: Path) -> None:
    config = in_mode("max-autotune")
    model = Model()
    function = cached(model.mlp, tmp_path, config=config)
    function(geared(rows(4), 1, 4))
    for count in (1, 4):
        x = rows(count)
        assert same(function(x), model.mlp(x))
    with pytest.raises(GearError, match="x dimension 0 is 3"):
        function(rows(3))
    assert len(function.variants) == 1


def padded(method: Any, cache: Path, **options: Any) -> Any:
    return cached(method, cache, on_gear_miss="pad", **options)


class Coupled(nn.Module):
    def highest(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.amax(0)

    def lowest(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.amin(0)

    def every(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).all(0) | (x > 100)

    def noisy(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "said"),
    [
        (Model.mean, 1, {}, "changes output 0: the function mixes rows"),
        (Model.joined, 2, {}, "changes output 0: the function mixes rows"),
        (Model.viewed, 1, {}, "x has gears, and is state of the module or shares memory"),
        (Model.written, 2, {}, r"writes to self.*rows"),
        (Coupled.noisy, 1, {"rng": "allow"}, "draws random numbers"),
    ],
)
def test_a_function_whose_inputs_cannot_be_padded_is_refused(tmp_path, method, arguments, options, said):
    model = Coupled() if method is Coupled.noisy else Model()
    inputs = [rows(3) for _ in range(arguments)]
    if method is Model.written:
        inputs[1] = torch.arange(3)
    with pytest.raises(GearError, match=said):
        padded(MethodType(method, model), tmp_path, **options)(*(geared(x, 2, 4) for x in inputs))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("values", [[3.5, -1.25, 2.5], [1.5, 2.5, 3.5], [-1.5, -2.5, -3.5]])
@pytest.mark.parametrize("name", ["highest", "lowest", "every"])
def test_coupled_rows_are_refused_whatever_the_first_call_brings(tmp_path, name, values):
    x = torch.tensor(values)[:, None].repeat(1, 4)
    with pytest.raises(GearError, match="the function mixes rows"):
        padded(getattr(Coupled(), name), tmp_path)(geared(x, 2, 4))


def test_padding_reads_no_rows_of_an_earlier_call(tmp_path: Path) -> None:
    model = Model()
    function = padded(model.add, tmp_path)
    function(geared(rows(4), 4, 6), geared(rows(4), 4, 6))
    function(torch.full((5, 8), float("nan")), rows(5))
    x, y = rows(3), rows(3)
    assert same(function(x, y), x + y)


def test_cut_outputs_are_overwritten_unless_they_are_cloned(tmp_path: Path) -> None:
    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = True
    model = Model()
    function = padded(model.add, tmp_path, config=config)
    function(geared(rows(4), 4, 6), geared(rows(4), 4, 6))
    x, y = rows(3), rows(3)
    kept = function(x, y)
    function(rows(3), rows(3))
    assert same(kept, x + y)


def test_numbers_and_strides_of_a_padded_call_are_the_callers(tmp_path: Path) -> None:
    class Sizes(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int, int]:
            return x @ y, x.size(0) * y.size(1), x.stride(0)

    model = Sizes()
    function = padded(model.forward, tmp_path)
    x, y = torch.randn(8, 3).t(), torch.randn(8, 5)
    set_dim_gears(x, {0: [2, 4]})
    set_dim_gears(y, {1: [3, 6]})
    assert same(function(x, y), model(x, y))
    x, y = torch.randn(8, 2).t(), torch.randn(8, 2)
    assert same(function(x, y), model(x, y))
    assert len(function.variants) == 1


class Marked(nn.Module):
    """Two methods: one for any size, one for four rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    def four(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(4, 4) * 1


@pytest.mark.parametrize(
    ("mark", "dynamic", "sizes", "num_variants"),
    [("mark_static", True, [2, 4], 2), ("mark_dynamic", False, [None, 4], 1)],
)
def test_mark_of_a_dimension_decides_whether_its_size_is_a_constant(
    tmp_path, mark, dynamic, sizes, num_variants
):
    function, x, y = cached(Marked().forward, tmp_path, dynamic=dynamic), torch.rand(2, 4), torch.rand(3, 4)
    getattr(torch._dynamo, mark)(x, 0)
    function(x)
    guards = function.variants[0].stored.artifact.guards
    assert next(check[2]["sizes"] for check in guards.checks if check[1] == "tensor")[:1] == sizes[:1]
    assert torch.equal(function(y), torch.relu(y) + 1)
    assert len(function.variants) == num_variants


def test_mark_dynamic_of_a_size_that_the_code_fixes_is_refused(tmp_path: Path) -> None:
    x = torch.rand(4, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(GearError, match=r"marked as dynamic is none.*[ (]x\.size\(\)\[0\]"):
        cached(Marked().four, tmp_path)(x)


def test_maybe_mark_dynamic_of_a_size_that_the_code_fixes_is_a_constant(tmp_path: Path) -> None:
    function = cached(Marked().four, tmp_path)
    x, y = torch.rand(4, 4), torch.rand(1, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert torch.equal(function(x), x)
    assert torch.equal(function(y), y.expand(4, 4))


@pytest.mark.parametrize("strict", [False, True])
def test_mark_unbacked_is_refused_by_name(tmp_path: Path, strict: bool) -> None:
    x = torch.rand(4, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0, strict=strict)
    said = r"dimension 0 of x is marked by torch._dynamo.decorators.mark_unbacked"
    with pytest.raises(GearError, match=said):
        cached(Marked().forward, tmp_path)(x)


class _Counting:
    """The backend, and how often ``torch.compile`` asked it."""

    def __init__(self, policy: str) -> None:
        config = CompilerConfig()
        config.inference_config.dynamic_gears_merge_policy = policy
        self._backend = get_backend(compiler_config=config)
        self.compiles = 0

    def __call__(self, graph: Any, inputs: list[Any]) -> Any:
        self.compiles += 1
        return self._backend(graph, inputs)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("policy", ["zip", "product"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.usefixtures("fresh_dynamo")
def test_gears_through_torch_compile(policy: str, dynamic: bool | None) -> None:
    counting = _Counting(policy)
    add: Any = torch.compile(Model().add, fullgraph=True, backend=counting, dynamic=dynamic)
    for count in (2, 4):
        x, y = rows(count), rows(count)
        if count == 2:
            geared(x, 2, 4), geared(y, 2, 4)
        assert torch.equal(add(x, y), x + y)
    with pytest.raises(GearError, match="x dimension 0 is 3"):
        add(rows(3), rows(3))
    assert counting.compiles == 1


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_gear_of_one_through_torch_compile_is_right() -> None:
    counting = _Counting("zip")
    add: Any = torch.compile(Model().add, fullgraph=True, backend=counting)
    for count in (1, 4, 1):
        x, y = geared(rows(count), 1, 4), geared(rows(count), 1, 4)
        assert torch.equal(add(x, y), x + y)
    assert counting.compiles == 2
