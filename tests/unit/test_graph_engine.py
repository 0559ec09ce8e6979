"""Engine ``graph``: the traced graph as Python source, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.devices import fake_world
from tests.support.small_models import Cached, Plain, Spread
from tests.support.tracing import traced
from warmrank.worker import groups
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.engines.graph import GraphEngine, pack_constants, unpack_constants
from warmrank.worker.torch_private.tracing import Trace

ROWS = torch.arange(8.0).reshape(2, 4)
ENGINE = GraphEngine()


def sections_of(trace: Trace) -> dict[str, bytes]:
    built = ENGINE.compile(trace.lowered, analyse(trace.lowered, "self"), keep_compiled=False)
    return dict(built.sections)


def source_of(method: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return sections_of(traced(method, *args, **kwargs))["graph.py"].decode()


def rerun(trace: Trace, *inputs: Any, groups: Mapping[str, str] | None = None) -> tuple[Any, ...]:
    """What the loaded graph gives for its inputs, in the order of the trace."""
    with torch.no_grad():
        return ENGINE.load(sections_of(trace), {}, groups or {})(*inputs)


class Arguments(nn.Module):
    """Operators whose arguments are of every kind that a graph holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float64, memory_format=torch.contiguous_format)
        y = y.clamp(min=-math.inf, max=1e300).sum(dim=[0, -1], keepdim=True)
        z = torch.full((2, 3), math.inf, dtype=torch.float64, device="cpu")
        picked = torch.cat([x, x], 1)[:, None, ..., ::2][torch.tensor([0, 1])]
        return (y + z).nan_to_num(nan=0.5) + picked.mean() + torch.zeros_like(x, layout=torch.strided)[0, 0]


class SameConstant(nn.Module):
    """Uses one tensor of the closure twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1, 2, 4, 8])
        return x * table + table


class Collective(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=self.group)
        return y


class Numbers(nn.Module):
    """Arithmetic on sizes, and a size among the outputs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        rows = x.shape[0]
        half = max(rows // 2, 1)
        return x[:half] * (rows + 1) / math.sqrt(2), rows * 3


# The source.


def test_source_of_a_static_graph_is_what_a_person_would_write() -> None:
    assert source_of(Plain().affine, ROWS, dynamic=False) == (
        "def bind(groups, constants):\n"
        "    aten_linear_default = torch._C._nn.linear\n"
        "    aten_mul_Tensor = torch.mul\n"
        "\n"
        "    def graph(arg0_1, arg1_1, arg2_1):\n"
        "        linear = aten_linear_default(arg2_1, arg0_1, arg1_1)\n"
        "        mul = aten_mul_Tensor(linear, 2)\n"
        "        del linear\n"
        "        return (mul,)\n"
        "\n"
        "    return graph\n"
    )


# What it computes.


def test_graph_with_arguments_of_every_kind_computes_what_eager_computes() -> None:
    (result,) = rerun(traced(Arguments().forward, ROWS, dynamic=False), ROWS)
    assert torch.equal(result, Arguments().forward(ROWS))


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_graph_with_a_dynamic_size_takes_other_sizes(rows: int) -> None:
    trace = traced(Numbers().forward, ROWS[:, :3].contiguous())
    x = torch.arange(rows * 3.0).reshape(rows, 3)
    sizes = {"L['x'].size()[0]": rows, "L['x'].size()[1]": 3}
    inputs = [x if item.is_tensor else sizes[item.source] for item in trace.lowered.inputs]
    result, number = rerun(trace, *inputs)
    expected, expected_number = Numbers().forward(x)
    assert torch.equal(result, expected)
    assert number == expected_number


# Constants.

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def exactly_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    bytes_of = [item.contiguous().view(-1).view(torch.uint8) for item in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bytes_of)


@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**31)),
        max_size=4,
    )
)
def test_constants_round_trip(tensors: list[tuple[torch.dtype, list[int], int]]) -> None:
    generator = torch.Generator()
    made = []
    for dtype, shape, seed in tensors:
        generator.manual_seed(seed)
        made.append(torch.randint(0, 100, shape, generator=generator).to(dtype))
    back = unpack_constants(pack_constants(made))
    assert [item.shape for item in back] == [item.shape for item in made]
    assert all(exactly_equal(*pair) for pair in zip(made, back, strict=True) if pair[0].numel())


def test_constant_keeps_nan_and_negative_zero_to_the_bit() -> None:
    constant = torch.tensor([math.nan, -0.0, math.inf])
    (back,) = unpack_constants(pack_constants([constant]))
    assert exactly_equal(back, constant)


# Determinism.


METHODS = [Plain().affine, Cached().store, Spread().forward, SameConstant().forward, Numbers().forward]


@pytest.fixture(scope="module")
def two_rounds() -> list[dict[str, dict[str, bytes]]]:
    """The sections of each method, twice; between the two every counter of Dynamo moves on."""
    return [{method.__qualname__: sections_of(traced(method, ROWS)) for method in METHODS} for _ in range(2)]


@pytest.mark.parametrize("name", [method.__qualname__ for method in METHODS])
def test_sections_are_equal_bytes_for_equal_graphs(two_rounds, name):
    assert two_rounds[0][name] == two_rounds[1][name]


# Groups.


def test_group_of_another_rank_gives_equal_bytes() -> None:
    sections = []
    for rank in (0, 3):
        with fake_world(rank=rank, world_size=4):
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            groups.register({"tp": pairs[rank // 2]})
            sections.append(sections_of(traced(Collective(pairs[rank // 2]).forward, ROWS)))
    assert sections[0] == sections[1]


# What no artifact can keep.


def test_constants_of_two_loads_are_apart() -> None:
    data = pack_constants([torch.ones(2)])
    first, second = unpack_constants(data), unpack_constants(data)
    first[0].add_(1.0)
    assert torch.equal(second[0], torch.ones(2))
