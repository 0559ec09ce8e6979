"""Guards as Dynamo makes them: their values, their readable conditions, and the sizes of a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.small_models import Cached, Plain
from tests.support.tracing import traced
from warmrank.worker.torch_private.dynamo_guards import TracedGuard
from warmrank.worker.torch_private.tracing import Trace

ROWS = torch.ones(2, 4)
aten = torch.ops.aten


@pytest.fixture(scope="module")
def store() -> Trace:
    """A method with a parameter, a buffer that it writes to, and a dynamic input."""
    return traced(Cached().store, ROWS)


@pytest.fixture(scope="module")
def affine() -> Trace:
    return traced(Plain().affine, ROWS, dynamic=False)


class Attributes(nn.Module):
    """Reads what Dynamo guards by value, by identity and by absence."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.5
        self.sizes = [2, 3]
        self.parts = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor, flag: bool = True) -> Any:
        y = self.parts[0](x) * self.factor * self.sizes[0]
        return y if flag else -y


class Doubles(nn.Module):
    """Takes any size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def guards(trace_: Trace, kind: str) -> list[TracedGuard]:
    return [guard for guard in trace_.guards if guard.kind == kind]


@pytest.fixture(scope="module")
def attributes() -> Trace:
    return traced(Attributes().forward, ROWS, flag=True)


def sizes_of_x(trace_: Trace) -> tuple[Any, Any]:
    (guard,) = [guard for guard in guards(trace_, "TENSOR_MATCH") if guard.source == "L['x']"]
    return guard.sizes, guard.strides


def test_size_that_a_parameter_fixes_is_a_number(store: Trace) -> None:
    assert sizes_of_x(store) == ((None, 4), (4, 1))


def test_size_that_the_method_asked_for_is_fixed() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2, 2) if x.shape[1] == 4 else x

    assert sizes_of_x(traced(Halves().forward, ROWS)) == ((None, 4), (4, 1))


def test_size_that_a_decomposition_asked_for_is_fixed() -> None:
    def by_rows(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x + x if x.shape[0] == 2 else x - x

    trace_ = traced(Plain().affine, ROWS, decompositions={aten.mul.Tensor: by_rows})
    assert sizes_of_x(trace_)[0] == (2, 4)


@pytest.mark.parametrize("dim", [0, 1], ids=["first", "second"])
def test_sizes_of_one_are_never_dynamic(dim: int) -> None:
    x = torch.ones(1, 4) if dim == 0 else torch.ones(4, 1)
    assert sizes_of_x(traced(Doubles().forward, x))[0][dim] == 1


def test_float_of_the_module_is_guarded_by_value_in_a_dynamic_trace(attributes: Trace) -> None:
    assert 0.5 in [guard.value for guard in guards(attributes, "CONSTANT_MATCH")] + [
        guard.value for guard in guards(attributes, "EQUALS_MATCH")
    ]
