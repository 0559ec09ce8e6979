"""Captured graphs of the CPU: what is recorded, what is called instead, what is refused."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from warmrank.worker.devices.cpu import CpuBackend
from warmrank.worker.devices.cpu_graph import CpuGraph
from warmrank.worker.errors import NotCapturable, StateChanged

pytestmark = pytest.mark.usefixtures("no_grad")

X = torch.linspace(-2.0, 3.0, 32).reshape(4, 8)
C = torch.complex(X[0], X[1])
_ROOT = Path(__file__).parents[2]


def capture(graph: Callable[..., Any], *inputs: Any) -> CpuGraph:
    """Captured with a copy of every tensor."""
    backend = CpuBackend()
    copied = frozenset(index for index, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    made = backend.capture(graph, inputs, copied=copied, aliased=frozenset(), pool=backend.pool())
    assert isinstance(made, CpuGraph)
    return made


GRAPHS: dict[str, tuple[Callable[..., tuple[Any, ...]], torch.Tensor]] = {
    "attention": (
        lambda x: (
            torch.nn.functional.scaled_dot_product_attention(
                x[None, None], x[None, None], x[None, None], is_causal=True
            ),
        ),
        X,
    ),
    "norms": (
        lambda x: (
            torch.nn.functional.layer_norm(x, (8,)),
            torch.nn.functional.rms_norm(x, (8,)),
            torch.nn.functional.batch_norm(x, torch.zeros(8), torch.ones(8)),
        ),
        X,
    ),
    "several results": (lambda x: (*torch.sort(x), *torch.topk(x, 3), *torch.var_mean(x, 1)), X),
    "one of several results": (lambda x: (torch.max(x, 1).values, torch.sort(x)[1]), X),
    "lists of results": (lambda x: (x.split(2)[1] + 1, *torch.unbind(x * 2)), X),
    "factories": (
        lambda x: (
            torch.arange(8) + x[0].long(),
            torch.full((2,), 3.0) * x[0, :2],
            torch.zeros_like(x) + x,
            x.new_ones(3),
        ),
        X,
    ),
    "conversions": (lambda x: (x.to(torch.float64), x.to(torch.bfloat16).float(), x.t().contiguous()), X),
    "conjugates": (lambda c: (c.conj() * 2, c.conj(), c.conj().imag + 0, torch.vdot(c, c)), C),
    "indices": (
        lambda x: (
            x[:, torch.tensor([1, 2])],
            x.clone().index_put_((torch.tensor([1]),), torch.tensor(3.0)),
            torch.where(x > 0, x, -x),
            x.masked_fill(x > 1, 0.0),
        ),
        X,
    ),
    "memory without values": (lambda x: (torch.empty(4, 8).copy_(x).add_(1),), X),
    "expanded": (lambda x: (x.expand(3, 4, 8), x.expand(3, 4, 8) * 2), X),
    "products": (
        lambda x: (
            x @ x.t(),
            torch.einsum("ij,kj->ik", x, x),
            torch.linalg.norm(x),
            torch.addmm(x, x[:, :4], x),
        ),
        X,
    ),
    "layouts in place": (lambda x: (x.clone().t_().add_(1), x.clone().unsqueeze_(0)), X),
    "explicit out": (lambda x: (torch.add(x, 1, out=torch.empty(4, 8)),), X),
    "its input": (lambda x: (x, x.t(), x[1:]), X),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_replay_equals_eager_with_other_values(name: str) -> None:
    graph, x = GRAPHS[name]
    captured = capture(graph, torch.zeros_like(x))
    captured.inputs[0].copy_(x)
    captured.replay()
    for ours, eager in zip(captured.outputs, graph(x), strict=True):
        assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
        assert torch.equal(ours, eager)


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


@pytest.mark.parametrize("x", [X.to_sparse(), X.to("meta")], ids=["sparse", "meta"])
@pytest.mark.parametrize("copied", [frozenset({0}), frozenset()], ids=["copied", "fixed"])
def test_input_that_is_no_plain_memory_is_refused(x: torch.Tensor, copied: frozenset[int]) -> None:
    backend = CpuBackend()
    with pytest.raises(NotCapturable, match="which a captured graph on the CPU cannot hold"):
        backend.capture(lambda x: (x,), [x], copied=copied, aliased=frozenset(), pool=backend.pool())


def test_refusal_says_what_to_do_and_leaves_the_pool_usable() -> None:
    backend = CpuBackend()
    pool = backend.pool()
    options: dict[str, Any] = {"copied": frozenset({0}), "aliased": frozenset(), "pool": pool}
    with pytest.raises(NotCapturable, match="leave it out of the cached function, or run") as caught:
        backend.capture(lambda x: (x.sum().item(),), [X], **options)
    assert caught.value.operator == "aten._local_scalar_dense.default"
    captured = backend.capture(lambda x: (x * 2,), [X], **options)
    captured.replay()
    assert torch.equal(captured.outputs[0], X * 2)


def test_dropout_that_draws_nothing_is_recorded() -> None:
    captured = capture(lambda x: torch.native_dropout(x, 0.5, train=False)[:1], X)
    captured.replay()
    assert torch.equal(captured.outputs[0], X)


def test_pool_of_another_backend_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a pool of the CPU backend; got a object"):
        CpuBackend().capture(
            lambda: (),
            [],
            copied=frozenset(),
            aliased=frozenset(),
            pool=object(),  # type: ignore[arg-type]
        )


# What a replay calls.


def test_views_and_what_nobody_uses_cost_no_call() -> None:
    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        torch.tanh(x)
        return (x.t()[1:].unsqueeze(0).expand(2, 7, 4) + 1,)

    assert len(capture(graph, X)._calls) == 1


def test_intermediate_values_share_memory() -> None:
    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        for _ in range(20):
            x = torch.tanh(x)
        return (x,)

    assert capture(graph, X).size_bytes == 3 * X.nbytes


def test_recording_holds_no_intermediate_values() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 2
        alive.append(weakref.ref(y))
        y = y + 1
        return (y, alive[0]() is None)

    captured = capture(graph, X)
    assert captured.outputs[1] is True


def test_python_of_the_graph_runs_once() -> None:
    calls: list[int] = []

    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        calls.append(1)
        return (x * 2,)

    captured = capture(graph, X)
    for _ in range(3):
        captured.replay()
    assert len(calls) == 1


def test_capture_leaves_the_garbage_collector_as_it_was() -> None:
    assert gc.isenabled()
    captured = capture(lambda x: (gc.isenabled(), x * 2), X)
    assert (captured.outputs[0], gc.isenabled()) == (False, True)


def test_inputs_and_fixed_outputs_lie_where_the_given_tensors_do() -> None:
    weight = torch.nn.Parameter(X.clone())
    backend = CpuBackend()
    captured = backend.capture(
        lambda w: (w, w[1:]), [weight], copied=frozenset(), aliased=frozenset({0, 1}), pool=backend.pool()
    )
    assert captured.inputs[0] is weight
    assert captured.outputs[0].data_ptr() == weight.data_ptr()
    assert captured.outputs[1].data_ptr() == weight[1:].data_ptr()


def test_cache_that_was_made_in_inference_mode_is_written_in_every_mode() -> None:
    with torch.inference_mode():
        cache = torch.zeros(2)
    backend = CpuBackend()
    captured = backend.capture(
        lambda c: (c.add_(1) * 2,), [cache], copied=frozenset(), aliased=frozenset(), pool=backend.pool()
    )
    before = cache.clone()
    captured.replay()
    with torch.inference_mode():
        captured.replay()
    assert torch.equal(cache, before + 2)


# Operators that are not torch's own.


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

    captured = capture(graph, torch.zeros_like(X))
    captured.inputs[0].copy_(X)
    captured.replay()
    for ours, eager in zip(captured.outputs, (X * 2, X + 1, X - 1), strict=True):
        assert torch.equal(ours, eager)


def test_operator_that_writes_and_returns_nothing_is_repeated(library: torch.library.Library) -> None:
    library.define("bump(Tensor(a!) x) -> ()")

    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    library.impl("bump", bump, "CPU")

    def graph(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 1
        torch.ops.warmrank_test.bump(y)
        return (y,)

    captured = capture(graph, X)
    captured.replay()
    assert torch.equal(captured.outputs[0], X + 1)


def test_replay_refuses_a_result_of_another_shape(library: torch.library.Library) -> None:
    shapes = iter([(2,), (1,)])
    library.define("unsteady(Tensor x) -> Tensor")
    library.impl("unsteady", lambda x: x.new_ones(next(shapes)), "CPU")
    captured = capture(lambda x: (torch.ops.warmrank_test.unsteady(x),), X)
    with pytest.raises(StateChanged, match=r"of torch.float32 \(2,\), .* it is torch.float32 \(1,\) now"):
        captured.replay()


def test_number_from_an_operator_of_its_own_is_refused(library: torch.library.Library) -> None:
    library.define("length(Tensor x) -> int")
    library.impl("length", lambda x: int(x.numel()), "CPU")
    with pytest.raises(NotCapturable, match="hands a number to Python"):
        capture(lambda x: (torch.ops.warmrank_test.length(x),), X)


def test_capture_in_a_new_process_imports_no_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from warmrank.worker.devices.cpu import CpuBackend\n"
        "b = CpuBackend()\n"
        "g = b.capture(lambda x: (torch.softmax(x @ x.t(), 0) + 1,), [torch.ones(2, 2)],\n"
        "    copied=frozenset({0}), aliased=frozenset(), pool=b.pool())\n"
        "g.replay()\n"
        "assert g.outputs[0].tolist() == [[1.5, 1.5], [1.5, 1.5]]\n"
        "print([n for n in ('torch._dynamo', 'torch._inductor', 'sympy') if n in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
