"""Captured graphs of the CPU: what is recorded, what is called instead, what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.tracing import cached, in_mode
from warmrank.worker.devices import CapturedGraph, CpuBackend
from warmrank.worker.errors import NotCapturable, NotPortable, StateChanged, WorkerError
from warmrank.worker.torch_private.kernels import call_of, out_variant
from warmrank.worker.torch_private.recording import leaves, leaves_of

Step = tuple[Callable[..., Any], tuple[int, ...]]

SHAPES = ((4, 6), (6, 4), (3, 4, 2), (5,), ())
_STEPS = 20


class RandomGraph:
    """One graph; `inputs` gives fitting arguments."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shape = self._random.choice(SHAPES[:3])
        self._steps: list[Step] = []
        self._outputs: tuple[int, ...] = ()
        self._make()

    def inputs(self, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x``, the weight and the cache."""
        generator = torch.Generator().manual_seed(seed)
        x, weight, cache = (torch.randn(self._shape, generator=generator) for _ in range(3))
        return x, weight, cache

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph."""
        values = list(inputs)
        for function, operands in self._steps:
            values.append(function(*(values[index] for index in operands)))
        return tuple(values[index] for index in self._outputs)

    def _make(self) -> None:
        values = list(self.inputs(0))
        constants = {value.untyped_storage().data_ptr() for value in values[:2]}
        while len(self._steps) < _STEPS:
            index, other = self._random.randrange(len(values)), self._random.randrange(len(values))
            a, b = values[index], values[other]
            writable = a.untyped_storage().data_ptr() not in constants and not _overlaps(a)
            choices = _of_one(a, writable=writable)
            choices += [(function, 2) for function in _of_two(a, b, writable=writable)]
            function, operands = self._random.choice(choices)
            step = (function, (index, other)[:operands])
            self._steps.append(step)
            values.append(function(*(values[position] for position in step[1])))
        count = self._random.randint(1, 4)
        self._outputs = tuple(self._random.randrange(len(values)) for _ in range(count))


def _of_one(a: torch.Tensor, *, writable: bool) -> list[tuple[Callable[..., Any], int]]:
    functions: list[Callable[..., Any]] = [
        torch.tanh,
        torch.relu,
        lambda a: a.mul(0.5).sub(1),
        lambda a: a.to(torch.float64).to(torch.float32),
        lambda a: a.unsqueeze(0),
        lambda a: a.clone(),
        lambda a: a.sum(),
        lambda a: torch.where(a > 0, a, a * 0.1),
        lambda a: torch.zeros_like(a) + 0.25,
        lambda a: a.reshape(-1),
    ]
    if a.dim():
        functions += [
            lambda a: a[..., 1:] if a.shape[-1] > 1 else a,
            lambda a: a.select(0, a.shape[0] - 1),
            lambda a: a.transpose(0, -1),
            lambda a: a.transpose(0, -1).contiguous(),
            lambda a: a.mean(dim=-1, keepdim=True).expand_as(a),
            lambda a: a.max(dim=0).values,
            lambda a: a.sort(dim=-1, stable=True)[0],
            lambda a: torch.cumsum(a, dim=0),
            lambda a: torch.softmax(a, dim=-1),
            lambda a: a.index_select(0, torch.arange(a.shape[0] - 1, -1, -1)),
            lambda a: a[torch.arange(a.shape[0]) // 2],
            lambda a: torch.cat([a, a * 2]),
            lambda a: a.split(1)[0],
            lambda a: functional.layer_norm(a, a.shape[-1:]),
        ]
    if a.dim() == 2:
        functions += [lambda a: a @ a.t(), lambda a: torch.einsum("ij,kj->ik", a, a).tanh()]
    if writable:
        functions += [lambda a: a.mul_(0.5), lambda a: a.add_(1.0), lambda a: a.clamp_(-2, 2)]
        if a.dim():
            functions += [_write_first_row, _fill_last]
    return [(function, 1) for function in functions]


def _of_two(a: torch.Tensor, b: torch.Tensor, *, writable: bool) -> list[Callable[..., Any]]:
    functions: list[Callable[..., Any]] = []
    if a.shape == b.shape:
        functions += [torch.add, torch.maximum, lambda a, b: torch.stack([a, b])] * 2
        if writable and not _share(a, b):
            functions += [lambda a, b: a.copy_(b), lambda a, b: a.add_(b, alpha=0.5)] * 3
    elif b.dim() == 0:
        functions += [torch.mul]
    if a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0]:
        functions += [lambda a, b: torch.tanh(a @ b)] * 3
    return functions


def _write_first_row(a: torch.Tensor) -> torch.Tensor:
    a[0] = 0.125
    return a


def _fill_last(a: torch.Tensor) -> torch.Tensor:
    return a.index_fill_(0, torch.tensor([a.shape[0] - 1]), -0.5)


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _overlaps(a: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(a.shape, a.stride(), strict=True))


pytestmark = pytest.mark.usefixtures("no_grad")

X = torch.linspace(-2.0, 3.0, 32).reshape(4, 8)
C = torch.complex(X[0], X[1])


def capture(graph: Callable[..., Any], *inputs: Any) -> CapturedGraph:
    """Captured with a copy of every tensor."""
    backend = CpuBackend()
    copied = frozenset(index for index, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    return backend.capture(graph, inputs, copied=copied, aliased=frozenset(), pool=backend.pool())


GRAPHS: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "attention": lambda x: (
        functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True),
    ),
    "norms": lambda x: (
        functional.layer_norm(x, (8,)),
        functional.rms_norm(x, (8,)),
        functional.batch_norm(x, torch.zeros(8), torch.ones(8)),
    ),
    "several results": lambda x: (*torch.sort(x), *torch.topk(x, 3), *torch.var_mean(x, 1)),
    "one of several results": lambda x: (torch.max(x, 1).values, torch.sort(x)[1]),
    "lists of results": lambda x: (x.split(2)[1] + 1, *torch.unbind(x * 2)),
    "factories": lambda x: (
        torch.arange(8) + x[0].long(),
        torch.full((2,), 3.0) * x[0, :2],
        torch.zeros_like(x) + x,
        x.new_ones(3),
    ),
    "conversions": lambda x: (x.to(torch.float64), x.to(torch.bfloat16).float(), x.t().contiguous()),
    "conjugates": lambda c: (
        c.conj() * 2,
        c.conj(),
        c.conj().imag + 0,
        torch.vdot(c, c),
        torch.linalg.pinv(c.view(2, 4)),  # whose conjugates are its own
    ),
    "indices": lambda x: (
        x[:, torch.tensor([1, 2])],
        x.clone().index_put_((torch.tensor([1]),), torch.tensor(3.0)),
        torch.where(x > 0, x, -x),
        x.masked_fill(x > 1, 0.0),
    ),
    "memory without values": lambda x: (torch.empty(4, 8).copy_(x).add_(1),),
    "expanded": lambda x: (x.expand(3, 4, 8), x.expand(3, 4, 8) * 2),
    "products": lambda x: (
        x @ x.t(),
        torch.einsum("ij,kj->ik", x, x),
        torch.linalg.norm(x),
        torch.addmm(x, x[:, :4], x),
    ),
    "layouts in place": lambda x: (x.clone().t_().add_(1), x.clone().unsqueeze_(0)),
    "explicit out": lambda x: (torch.add(x, 1, out=torch.empty(4, 8)),),
    "its input": lambda x: (x, x.t(), x[1:]),
}


def assert_repeated(graph: Callable[..., tuple[Any, ...]], x: torch.Tensor) -> None:
    """A recorded run equals eager, and a replay with other values than the capture had."""
    recorded, captured = capture(graph, x), capture(graph, torch.ones_like(x))
    captured.inputs[0].copy_(x)
    captured.replay()
    for run in (recorded, captured):
        for ours, eager in zip(run.outputs, graph(x), strict=True):
            assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
            assert torch.equal(ours, eager)


@pytest.mark.parametrize("name", GRAPHS)
def test_replay_equals_eager_with_other_values(name: str) -> None:
    assert_repeated(GRAPHS[name], C if name == "conjugates" else X)


REFUSED: dict[str, Callable[[torch.Tensor], tuple[Any, ...]]] = {
    "aten._local_scalar_dense.default hands a value": lambda x: (x.sum().item(),),
    "aten.equal.default hands a value": lambda x: (torch.equal(x, x),),
    "aten.nonzero.default makes a result whose size": lambda x: (torch.nonzero(x),),
    "aten.index.Tensor makes a result whose size depends on values of a mask": lambda x: (x[x > 0],),
    "aten.rand.default draws random numbers": lambda x: (x + torch.rand(8),),
    "aten.native_dropout.default draws random": lambda x: (torch.native_dropout(x, 0.5, train=True)[0],),
    "aten.resize_.default changes the memory": lambda x: (x.clone().resize_(2),),
    "aten.add.out changes the size": lambda x: (torch.add(x, 1, out=torch.empty(0)),),
    "aten.t_.default changes the layout of an input": lambda x: (x.t_() + 1,),
    "aten.add_.Tensor writes to a tensor that is neither": lambda x: (torch.tensor(1.0).add_(x.sum()),),
    "layout torch.sparse_coo": lambda x: (x.to_sparse(),),
    "a tensor on meta": lambda x: (x.to("meta"),),
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_cannot_be_repeated_is_refused_by_name(words: str) -> None:
    with pytest.raises(NotCapturable, match=words.replace(".", r"\.")):
        capture(REFUSED[words], X.clone())


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("warmrank_test", "DEF") as library:
        yield library


def test_operator_of_its_own_is_repeated(library: torch.library.Library) -> None:
    library.define("twice(Tensor x) -> (Tensor, Tensor[])")
    library.impl("twice", lambda x: (x * 2, [x + 1, x - 1]), "CPU")

    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        first, (second, third) = torch.ops.warmrank_test.twice(x)
        return first, second * 1, third

    assert_repeated(graph, X)


NUM_GRAPHS = 4
_MEMORY = 1 << 14  # elements; more than any of the graphs needs


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than these small tensors, on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether layouts and all bits are equal; unlike ``torch.equal``, also those of zeros and NaN."""
    one, other = (
        value.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
        for value in (ours, theirs)
    )
    layouts = [(value.dtype, value.shape, value.stride()) for value in (ours, theirs)]
    return layouts[0] == layouts[1] and torch.equal(one, other)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_of_one_pool_equal_eager(seed: int) -> None:
    backend = CpuBackend()
    pool = backend.pool()
    taken = partial(backend.capture, copied=frozenset({0}), aliased=frozenset(), pool=pool)
    # Larger than all others, so that they lie in its memory, which its replay fills with NaN.
    poison = taken(lambda x: (x + float("nan"),), [torch.ones(_MEMORY)])
    size = pool.size_bytes
    graphs = [RandomGraph(seed * NUM_GRAPHS + number) for number in range(NUM_GRAPHS)]
    inputs = [graph.inputs(1) for graph in graphs]
    captured = [taken(graph, given) for graph, given in zip(graphs, inputs, strict=True)]
    assert pool.size_bytes == size
    order = random.Random(seed)
    for step in range(2 * NUM_GRAPHS):
        number = order.randrange(NUM_GRAPHS)
        x, weight, cache = graphs[number].inputs(100 + step)
        poison.inputs[0].fill_(float("nan"))
        poison.replay()
        captured[number].inputs[0].copy_(x)
        inputs[number][1].copy_(weight)
        inputs[number][2].copy_(cache)
        captured[number].replay()
        expected = graphs[number](x, weight, cache)
        assert all(map(same_bits, captured[number].outputs, expected))
        assert same_bits(inputs[number][2], cache)


aten = torch.ops.aten

GRID = torch.linspace(-2.0, 3.0, 12).reshape(3, 4)
SCALAR = torch.tensor(2.0)


# Bindings. Fact: a binding takes `out` by keyword, one tensor or a tuple in the schema's order.


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (aten.add.out, (GRID, GRID)),
        (aten.add.out, (GRID, SCALAR)),
        (aten.mul.out, (GRID, 2.0)),
        (aten.clamp.out, (GRID, -1, None)),
        (aten.silu.out, (GRID,)),
        (aten.cat.out, ([GRID[:1], GRID[1:]], 0)),
        (aten.cumsum.out, (GRID, 1)),
    ],
    ids=str,
)
def test_binding_is_used_and_equals_the_overload(overload: Any, args: tuple[Any, ...]) -> None:
    ours, theirs = torch.empty(3, 4), torch.empty(3, 4)
    call = call_of(overload, args, {"out": ours})
    assert isinstance(call, partial)
    assert call.func is not overload._op
    call()
    overload(*args, out=theirs)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (aten.relu.default, (GRID,)),
        (aten.native_layer_norm.default, (GRID, [4], GRID[0], None, 1e-5)),
        (aten.embedding.default, (GRID, torch.tensor([2, 0]))),
        (aten.split.Tensor, (GRID, 2)),
        (aten.sort.default, (GRID, 1, True)),
    ],
    ids=str,
)
def test_binding_of_what_writes_nowhere_equals_the_overload(overload: Any, args: tuple[Any, ...]) -> None:
    call = call_of(overload, args, {})
    assert isinstance(call, partial)
    assert call.func is not overload._op
    assert all(map(torch.equal, leaves_of(overload)(call()), leaves(overload(*args))))


@pytest.mark.parametrize(
    ("overload", "expected"),
    [
        (aten.add.Tensor, aten.add.out),
        (aten.mean.dim, aten.mean.out),
        (aten.arange.start_step, None),
        (aten.sort.stable, aten.sort.values_stable),
        (aten.add_.Tensor, None),
        (aten.unbind.int, None),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, None),
    ],
    ids=str,
)
def test_out_variant_has_the_same_arguments(overload: Any, expected: Any) -> None:
    variant = out_variant(overload)
    assert (variant and variant.overload) is expected


class Window(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (2, 1), 1) + 1


def test_view_by_place_in_the_storage_is_refused_in_max_autotune(tmp_path: Path) -> None:
    config = in_mode("max-autotune")
    with pytest.raises(NotPortable, match=r"as_strided looks at the storage of x"):
        cached(Window().forward, tmp_path, config=config)(torch.randn(16))


def test_parameter_that_is_gone_is_looked_up_anew(tmp_path: Path) -> None:
    model = nn.LayerNorm(4)
    function = cached(model.forward, tmp_path)
    x = torch.randn(3, 4)
    for _ in range(3):
        function(x)
    model.register_parameter("weight", None)
    try:
        found = function(x)
    except WorkerError as error:
        assert isinstance(error, StateChanged)  # noqa: PT017 - one of two right ends
    else:
        assert torch.equal(found, model(x))


def test_replay_refuses_a_result_of_another_shape(library: torch.library.Library) -> None:
    shapes = iter([(2,), (1,)])
    library.define("unsteady(Tensor x) -> Tensor")
    library.impl("unsteady", lambda x: x.new_ones(next(shapes)), "CPU")
    captured = capture(lambda x: (torch.ops.warmrank_test.unsteady(x),), X)
    with pytest.raises(StateChanged, match=r"of torch.float32 \(2,\), .* it is torch.float32 \(1,\) now"):
        captured.replay()


@torch.library.custom_op("warmrank_cpu_graph::grow", mutates_args=("x",))
def grow(x: torch.Tensor, y: torch.Tensor) -> None:
    """Puts a longer tensor in place of its argument, which no schema says."""
    x.data = torch.cat([x, y])


@grow.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> None:
    del x, y


class Growing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = y * 2
        torch.ops.warmrank_cpu_graph.grow(x, y)
        return made


@pytest.mark.usefixtures("no_grad")
def test_tensor_that_an_operator_moves_is_moved_in_every_call(cache: Path) -> None:
    function = cached(Growing().forward, cache)
    for call in range(3):
        x, y = torch.zeros(2), torch.full((3,), float(call))
        assert torch.equal(function(x, y), y * 2)
        assert x.tolist() == [0.0, 0.0, *y.tolist()]
