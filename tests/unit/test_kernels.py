"""How kernels are called again and again: which binding, which out variant, and never a wrong one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from warmrank.worker.torch_private.kernels import call_of, out_variant, run

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("no_grad")

X = torch.linspace(-2.0, 3.0, 12).reshape(3, 4)
SCALAR = torch.tensor(2.0)


def called(call: Any) -> Any:
    """The binding behind a call."""
    assert isinstance(call, partial)
    return call.func


def empty() -> torch.Tensor:
    return torch.empty(3, 4)


# Bindings. Fact: a binding takes `out` by keyword, one tensor or a tuple in the schema's order.


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (aten.add.out, (X, X)),
        (aten.add.out, (X, SCALAR)),
        (aten.mul.out, (X, 2.0)),
        (aten.clamp.out, (X, -1, None)),
        (aten.silu.out, (X,)),
        (aten.cat.out, ([X[:1], X[1:]], 0)),
        (aten.cumsum.out, (X, 1)),
    ],
    ids=str,
)
def test_binding_is_used_and_equals_the_overload(overload: Any, args: tuple[Any, ...]) -> None:
    ours, theirs = empty(), empty()
    call = call_of(overload, args, {"out": ours})
    assert called(call) is not overload._op
    call()
    overload(*args, out=theirs)
    assert torch.equal(ours, theirs)


def test_binding_that_reaches_another_overload_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Home:
        tanh = staticmethod(lambda x, out: torch.sigmoid(x, out=out))

    monkeypatch.setattr("warmrank.worker.torch_private.kernels._HOMES", (Home,))
    monkeypatch.setattr("warmrank.worker.torch_private.kernels._BINDINGS", {})
    assert called(call_of(aten.tanh.out, (X,), {"out": empty()})) is aten.tanh.out._op


# Out variants.


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


@pytest.mark.parametrize(
    "overload", [aten.binary_cross_entropy.default, aten.huber_loss.default, aten.full.default], ids=str
)
def test_variant_that_is_no_structured_kernel_is_not_trusted(overload: Any) -> None:
    assert out_variant(overload) is None


def test_calls_run_in_turn_and_below_autograd() -> None:
    x = torch.ones(2, requires_grad=True)
    out = torch.empty(2)
    with torch.enable_grad():
        run([call_of(aten.mul.out, (x, 3.0), {"out": out}), call_of(aten.add_.Tensor, (out, 1), {})])
    assert out.tolist() == [4.0, 4.0]
    assert not out.requires_grad
