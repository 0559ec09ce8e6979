"""Operators with bodies in Python, and operators of higher order."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from tests.support.tracing import cached, compiled, in_mode, misfits, outcome, reason
from warmrank.inference import cache_compile
from warmrank.worker.errors import GraphBreak, NotPortable
from warmrank.worker.keys import reachable

META = """
import torch
FACTOR = 4
def op(x): return x[:, :FACTOR].contiguous()
library = torch.library.Library("{name}", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", op, "CPU")
library.impl("op", op, "Meta")
"""


class Uses(nn.Module):
    """Calls an operator, and reads the shape of its result."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = getattr(torch.ops, name).op

    def step(self, x: torch.Tensor) -> Any:
        y = self.operator(x)
        return y.sum(-1) / y.shape[-1]


@pytest.fixture
def defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module with an operator, and forgets it at the end."""
    made: list[str] = []

    def define(text: str, name: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text.format(name=name))
        monkeypatch.syspath_prepend(str(tmp_path))
        made.append(name)
        return importlib.import_module(name)

    yield define
    for name in made:
        del sys.modules[name]


@pytest.mark.parametrize("guards", ["once", "skip"])
def test_operator_that_is_not_registered_is_looked_for(guards: Any, defined: Any, tmp_path: Path) -> None:
    name = f"warmrank_late_{guards}"
    module = defined(META, name)
    model, x = Uses(name), torch.ones(3, 8)

    with torch.no_grad():
        cache_compile(model.step, cache_dir=tmp_path, guards=guards)(x)
        module.library._destroy()
        del sys.modules[name]
        function = cache_compile(model.step, cache_dir=tmp_path, guards=guards)
        function(x)
    assert outcome(function) == "loaded"


REACHED = """
import functools
import torch
FACTOR, KNOWN, LIST = 2.0, {{"a": 3.0}}, [5.0]
class Held:
    def __init__(self): self.value = 7.0
HELD = Held()
@functools.lru_cache
def cached(x): return x
def helper(x, *, by=1.0): return x * FACTOR * KNOWN["a"] * LIST[0] * HELD.value * by * cached(1)
def patch(x, *_, **__): return helper(x)
@torch.library.custom_op("{name}::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return helper(x)
@op.register_fake
def _(x): return torch.empty_like(helper(x))
"""
REACHED_CHANGES: dict[str, Callable[[Any], Any]] = {
    "global": lambda module: setattr(module, "FACTOR", 3.0),
    "member of a dict": lambda module: module.KNOWN.update(a=4.0),
    "member of a list": lambda module: module.LIST.__setitem__(0, 6.0),
    "attribute": lambda module: setattr(module.HELD, "value", 8.0),
    "code": lambda module: setattr(module.helper, "__code__", (lambda x, *, by=1.0: x + by).__code__),
    "default": lambda module: module.helper.__kwdefaults__.update(by=9.0),
    "cached function": lambda module: setattr(module.cached.__wrapped__, "__code__", other.__code__),
    "another function": lambda module: setattr(module, "helper", torch.neg),
}


@torch.no_grad()
@pytest.mark.parametrize("change", REACHED_CHANGES)
def test_change_of_what_a_patch_reaches_is_noticed_by_the_next_call(change, defined, tmp_path, monkeypatch):
    patches = defined(REACHED, f"warmrank_patch_{[*REACHED_CHANGES].index(change)}")
    monkeypatch.setattr(torch.Tensor, "softmax", patches.patch)
    model = CallsTorch(lambda x: nn.functional.softmax(x, 0))
    function = cache_compile(model.forward, cache_dir=tmp_path)
    for _ in range(3):
        assert torch.equal(function(X), model.forward(X))
    REACHED_CHANGES[change](patches)
    for _ in range(3):
        assert torch.equal(function(X), model.forward(X))


@torch.no_grad()
@pytest.mark.parametrize("change", REACHED_CHANGES)
def test_calls_of_an_operator_compute_no_digest_until_its_code_changes(
    change, defined, tmp_path, monkeypatch
):
    name = f"warmrank_reached_{[*REACHED_CHANGES].index(change)}"
    module = defined(REACHED, name)
    computed: list[str] = []
    digest = reachable.operator_digest

    def counted(operator: str, overload: Any) -> str:
        computed.append(operator)
        return digest(operator, overload)

    monkeypatch.setattr(reachable, "operator_digest", counted)
    model = CallsTorch(getattr(torch.ops, name).op)
    function = cache_compile(model.forward, cache_dir=tmp_path)
    for _ in range(3):
        function(X)
    computed.clear()
    for _ in range(3):
        assert torch.equal(function(X), model.forward(X))
    assert not computed
    REACHED_CHANGES[change](module)
    assert torch.equal(function(X), model.forward(X))
    assert computed


X = torch.tensor([-1.0, 2.0, 3.0])
FACTOR = 7


def other(x: Any, *_: Any) -> Any:
    return x * FACTOR


class CallsTorch(nn.Module):
    """Calls one function of torch."""

    def __init__(self, use: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(x)


USES: dict[str, tuple[Callable[[torch.Tensor], Any], Any, str]] = {
    "method": (lambda x: x.abs(), torch.Tensor, "abs"),
    "operator": (lambda x: x + 1, torch.Tensor, "__add__"),
    "function": (lambda x: torch.abs(x), torch, "abs"),  # noqa: PLW0108 - traced
    "function that another one calls": (lambda x: nn.functional.relu(x), torch, "relu"),  # noqa: PLW0108
    "method that a function calls": (lambda x: nn.functional.softmax(x, 0), torch.Tensor, "softmax"),
}
PATCHES: dict[str, Any] = {
    "function": other,
    "another of torch's": torch.Tensor.neg,
    "partial": functools.partial(torch.mul, other=3),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("use", USES)
def test_patch_is_noticed(use: str, patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, owner, name = USES[use]
    module = CallsTorch(call)
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(owner, name, PATCHES[patch])
    assert any("was patched" in reason for reason in misfits(artifact, module.forward, X))


@contextlib.contextmanager
def doubling() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "decorate", [torch.autocast("cpu", torch.bfloat16), doubling()], ids=["casts", "own"]
)
def test_context_around_a_function_of_torch_is_noticed(
    decorate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = CallsTorch(lambda x: torch.einsum("i,j->ij", x, x))
    artifact = compiled(module.forward, X)
    monkeypatch.setattr(torch, "einsum", decorate(torch.einsum))
    assert any("was patched" in reason for reason in misfits(artifact, module.forward, X))


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.normalize(self.act(x), dim=0)


CHANGES: dict[str, tuple[Any, str, Any]] = {
    "method of another layer": (nn.ReLU, "forward", nn.Sigmoid.forward),
    "code of a method": (nn.ReLU.forward, "__code__", nn.Sigmoid.forward.__code__),
    "function in C": (nn.ReLU, "forward", torch.sigmoid),
    "code of a function": (nn.functional.normalize, "__code__", nn.functional.softmax.__code__),
}


@pytest.mark.parametrize("change", CHANGES)
def test_functions_of_torch_in_other_places_are_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layered()
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(*CHANGES[change])
    assert misfits(artifact, module.forward, X)


@pytest.mark.parametrize("change", CHANGES)
def test_artifact_of_functions_in_other_places_fits_no_process_without(change, monkeypatch):
    module = Layered()
    with monkeypatch.context() as patch:
        patch.setattr(*CHANGES[change])
        artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X)


class Measures(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len([1, 2])


def test_global_that_hides_a_builtin_is_noticed_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(Measures().forward, X)
    assert misfits(artifact, Measures().forward, X) == ()
    monkeypatch.setitem(globals(), "len", lambda _: 9)
    assert misfits(artifact, Measures().forward, X) != ()
    hidden = compiled(Measures().forward, X)
    assert misfits(hidden, Measures().forward, X) == ()
    monkeypatch.undo()
    assert misfits(hidden, Measures().forward, X) != ()


# torch's own, in eager: forward-mode derivatives script their decompositions, and attention is not fused.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning"),
]

ROWS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
QUERY = torch.randn(1, 2, 128, 16, generator=torch.Generator().manual_seed(0))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = 2.0

    def body(self, x: torch.Tensor) -> Any:
        return self.b(torch.relu(self.a(x))) * self.scale


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


def causal(_b: Any, _h: Any, row: Any, column: Any) -> Any:
    return row >= column


def nearby(score: torch.Tensor, _b: Any, _h: Any, row: Any, column: Any) -> Any:
    return score - (row - column).abs()


def nearer(score: torch.Tensor, _b: Any, _h: Any, row: Any, column: Any) -> Any:
    return score - (row - column).abs() * 2


BLOCKS = create_block_mask(causal, None, None, 128, 128, device="cpu")


@torch.compiler.nested_compile_region
def region(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.relu(layer(x))


def checkpointed(m: Any, x: torch.Tensor) -> Any:
    return checkpoint(m.body, x, use_reentrant=False) + 1


def branch(m: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, m.a, lambda v: m.b(v) * 2, (x,))


def branch_on_size(m: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.shape[0] > 3, m.a, lambda v: m.b(v) * 2, (x,))


def loop(m: Any, x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, _y: i < x.sum(), lambda i, y: (i + 1, m.a(y)), (start, x))


def scanned(_m: Any, x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry + row, (carry * row).clone()), torch.zeros(4), x)


def associative(_m: Any, x: torch.Tensor) -> Any:
    return associative_scan(lambda one, other: one + other, x, dim=0, combine_mode="generic")


def mapped_rows(m: Any, x: torch.Tensor) -> Any:
    return mapped(lambda row, weight: row * weight, x, m.a.weight[0])


def batched(m: Any, x: torch.Tensor) -> Any:
    return torch.vmap(lambda row: m.a(row) * 2)(x), torch.vmap(torch.vmap(torch.mul))(x, x)


def gradient(m: Any, x: torch.Tensor) -> Any:
    return torch.func.grad(lambda v: (m.a(v) ** 2).sum())(x)


def stopped_gradient(_m: Any, x: torch.Tensor) -> Any:
    def stopped(v: torch.Tensor) -> Any:
        with torch.no_grad():
            fixed = v * 2
        return (v * fixed).sum()

    return torch.func.grad(stopped)(x)


def jacobian(_m: Any, x: torch.Tensor) -> Any:
    return torch.func.jacrev(torch.sin)(x[0]), torch.func.jvp(torch.sin, (x,), (x,))


def called_with(m: Any, x: torch.Tensor) -> Any:
    return torch.func.functional_call(m.a, {"weight": m.a.weight * 2, "bias": m.a.bias}, (x,))


def custom_gradient(_m: Any, x: torch.Tensor) -> Any:
    return Double.apply(x)


def regions(m: Any, x: torch.Tensor) -> Any:
    return region(region(x, m.a), m.b)


def attention(_m: Any, x: torch.Tensor) -> Any:
    return flex_attention(x, x, x, score_mod=nearby, block_mask=BLOCKS)


def attention_masked_within(_m: Any, x: torch.Tensor) -> Any:
    blocks = create_block_mask(causal, None, None, x.shape[2], x.shape[2], device="cpu")
    return flex_attention(x, x, x, block_mask=blocks)


PROGRAMS = {
    program.__name__: (program, QUERY if "attention" in program.__name__ else ROWS)
    for program in (
        checkpointed, branch, branch_on_size, loop, scanned, associative, mapped_rows, batched, gradient,
        stopped_gradient, jacobian, called_with, custom_gradient, regions, attention, attention_masked_within,
    )
}  # fmt: skip
NOT_COMPILED_AHEAD = ("branch", "loop")
SLOW = ("attention_masked_within", "associative", "jacobian")


def module(program: Callable[[Any, torch.Tensor], Any]) -> Any:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return program(self, x)

    return type("Program", (Layers,), {"forward": forward, "__module__": __name__})()


def assert_equals_eager(function: Any, given: torch.Tensor, tolerance: float = 0.0) -> None:
    eager = function.module.forward
    for x in (given, -given, given.clone()):
        wanted, got = eager(x), function(x)
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PROGRAMS]
)
def test_program_is_compiled_and_loaded_and_equals_eager(name: str, tmp_path: Path) -> None:
    program, given = PROGRAMS[name]
    for expected in ("compiled", "loaded"):
        with torch.no_grad():
            function = cached(module(program).forward, tmp_path)
            assert_equals_eager(function, given)
            assert outcome(function) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in NOT_COMPILED_AHEAD])
def test_program_is_compiled_ahead_of_time(name: str, tmp_path: Path) -> None:
    program, given = PROGRAMS[name]
    config = in_mode("max-autotune")
    for expected in ("compiled", "loaded"):
        with torch.no_grad():
            function = cached(module(program).forward, tmp_path, config=config, ge_cache=True)
            assert_equals_eager(function, given, tolerance=1e-5)
            assert outcome(function) == expected


@pytest.mark.parametrize("name", NOT_COMPILED_AHEAD)
def test_control_flow_on_data_is_refused_in_max_autotune_with_the_way_out(name: str, tmp_path: Path) -> None:
    program, given = PROGRAMS[name]
    config = in_mode("max-autotune")
    function = cached(module(program).forward, tmp_path, config=config)
    with torch.no_grad(), pytest.raises(NotPortable, match=r"depends on data.*use mode reduce-overhead"):
        function(given)


# Of regions, Dynamo takes an earlier one's graph for a later one, without conditions of its own.
@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("attention", lambda patch, _: patch.setitem(globals(), "nearby", nearer), "nearby"),
        ("checkpointed", lambda _, model: setattr(model, "scale", 3.0), "scale"),
        ("regions", lambda _, model: setattr(model, "b", nn.Identity()), ""),
    ],
    ids=["another body", "attribute of a body", "attribute of a later region"],
)
def test_what_only_a_body_reads_is_a_condition(name, change, why, tmp_path, monkeypatch):
    program, given = PROGRAMS[name]
    with torch.no_grad():
        cached(module(program).forward, tmp_path)(given)
        changed = module(program)
        change(monkeypatch, changed)
        function = cached(changed.forward, tmp_path)
        assert_equals_eager(function, given)
    assert outcome(function) == "compiled"
    assert why in reason(function)


def writes(m: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda v: v.add_(1) * 2, m.b, (x,))


def prints(_m: Any, x: torch.Tensor) -> Any:
    torch.ops.higher_order.print("{}", x.sum())
    return x * 2


@pytest.mark.parametrize(("program", "why"), [(writes, "."), (prints, "print|builtins")])
def test_branch_that_writes_and_code_that_runs_unseen_are_refused(program, why, tmp_path):
    function = cached(module(program).forward, tmp_path)
    with torch.no_grad(), pytest.raises((NotPortable, GraphBreak), match=why):
        function(ROWS)
