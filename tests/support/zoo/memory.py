"""Modules that write: to inputs, to their own tensors and Python state; and inputs that share memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.zoo.case import Call, call, case, numbers, refused
from tests.support.zoo.values import Inner, Outer, one, two_sizes

CALLS = 0


def three() -> list[Call]:
    return [call(numbers(3, 4, seed=seed)) for seed in range(3)]


@case(
    lambda: [call(numbers(n, 4)) for n in (1, 2, 3)],
    "compiled compiled ran",
    cache=lambda: nn.Buffer(torch.zeros(8, 4)),
    layer=lambda: nn.Linear(4, 4),
)
def kv_cache(self: Any, x: torch.Tensor) -> Any:
    self.cache[: x.shape[0]] = self.layer(x)
    return self.cache.sum(0) + x


@case(three, "compiled ran ran", total=lambda: torch.zeros(3, 4))
def plain_tensor_attribute(self: Any, x: torch.Tensor) -> Any:
    self.total.add_(x)
    return self.total * 2


@case(three, "compiled ran ran", total=lambda: nn.Buffer(torch.zeros(3, 4)))
def replaces_buffer(self: Any, x: torch.Tensor) -> Any:
    self.total = self.total + x.clone()
    return self.total * 2


@case(three, "compiled compiled ran", cache=lambda: torch.zeros(0, 4))
def grows_cache(self: Any, x: torch.Tensor) -> Any:
    self.cache = torch.cat([self.cache, x])
    return self.cache.sum(0)


@case(three, "compiled ran ran", count=lambda: 0)
def counts_calls(self: Any, x: torch.Tensor) -> Any:
    self.count += 1
    return x * self.count


@case(three, "compiled compiled ran", first=lambda: True)
def flips_flag(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.first:
        self.first = False
        return x + 1
    return x * 2


@case(lambda: three()[:2], "compiled compiled", history=list)
def appends_to_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.history.append(x * 2)
    return x + len(self.history)


@case(three, "compiled ran ran")
def remembers_last(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.last = x.sum()
    return x + 1


@case(lambda: [call(numbers(3, 4), Outer(Inner(numbers(3, 4)), 2))], "compiled")
def writes_to_argument(self: Any, x: torch.Tensor, given: Outer) -> torch.Tensor:
    given.inner.x = x * 2
    given.count = given.count + 1
    given.names.append("seen")
    return x + 1


@case(lambda: [call([numbers(3, 4), numbers(3, 4)]), call([numbers(3, 4)])], "compiled compiled")
def appends_to_argument(self: Any, given: list[torch.Tensor]) -> torch.Tensor:
    given.append(given[0] * 2)
    return given[-1] + 1


@case(two_sizes, "compiled ran")
def writes_to_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


@case(two_sizes, "compiled ran")
def returns_views_of_input(self: Any, x: torch.Tensor) -> Any:
    return x, x.view(-1), x[0], x.t()


@case(two_sizes, "compiled ran", weight=lambda: nn.Parameter(torch.ones(4)))
def returns_own_tensors(self: Any, x: torch.Tensor) -> Any:
    return self.weight, x * self.weight, self.weight[1:]


def distinct_then_same() -> list[Call]:
    x = numbers(3, 4)
    return [call(numbers(3, 4), numbers(3, 4, seed=1)), call(x, x)]


@case(distinct_then_same, "compiled compiled")
def identity_of_inputs(self: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * 5 if a is b else a + b


@case(distinct_then_same, "compiled compiled")
def same_tensor_twice(self: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return a + b


def views_of_one_tensor() -> list[Call]:
    held = numbers(8, 4)
    return [
        call(held[0:2], numbers(2, 4, seed=1)),
        call(held[0:2], held[1:3]),
        call(held[0:2], numbers(2, 4, seed=2)),
        call(held[0:2], held[2:4]),
    ]


@case(views_of_one_tensor, "compiled ran ran ran")
def overlapping_inputs(self: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The captured graph of the first call has a copy of ``b``, that of the second must not."""
    a.add_(1)
    return a * b


@case(
    lambda: [call(numbers(3, 1).expand(3, 4)), call(numbers(5, 1).expand(5, 4)), call(numbers(3, 4))],
    "compiled ran compiled",
)
def expanded_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def sliding() -> torch.Tensor:
    return numbers(12).as_strided((3, 4), (2, 1))


@case(lambda: [call(sliding()), call(numbers(3, 4)), call(sliding())], "compiled compiled ran")
def sliding_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def strided() -> list[Call]:
    return [call(numbers(4, 4)), call(numbers(4, 4).t()), call(numbers(4, 8)[:, ::2])]


def slices() -> list[Call]:
    return [call(numbers(n, 4)[n - 4 : n - 1]) for n in (9, 12, 20)] + [call(numbers(2, 9, 4)[1][5:8])]


@case(slices, "compiled ran ran ran", options={"dynamic": False})
def slices_of_other_buffers(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


@case(lambda: [call(numbers(3, 8)[:, :4]), call(numbers(2, 3, 9)[0][:, :4])], "compiled ran")
def columns_of_other_buffers(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1)


def growing() -> list[Call]:
    return [call(numbers(2, n)[:, -1:]) for n in (5, 6, 7)]


@case(growing, "compiled ran ran")
def last_column(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + 1


@case(strided, "compiled compiled compiled")
def strides_of_input(self: Any, x: torch.Tensor) -> Any:
    return x.stride(), x * 2


def turned() -> list[Call]:
    held = numbers(4, 4, 2)
    return [call(held), call(held.transpose(0, 1)), call(held)]


@case(turned, "compiled compiled ran", settings={"debug.aclgraph.clone_input": False})
def one_address_two_strides(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


@case(two_sizes, "compiled ran", settings={"debug.run_eagerly": True})
def without_capture(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


@case(
    lambda: [call(numbers(n, 4)) for n in (2, 3, 4, 2)],
    "compiled ran ran ran",
    settings={"debug.aclgraph.static_capture_size_limit": 1},
)
def beyond_the_capture_limit(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


@case(two_sizes, "compiled ran", settings={"debug.aclgraph.enable_output_clone": True})
def cloned_outputs(self: Any, x: torch.Tensor) -> Any:
    return x * 2, x[0]


@refused(one, "NotPortable")
def sets_global(self: Any, x: torch.Tensor) -> torch.Tensor:
    global CALLS  # noqa: PLW0603 - that is what is tried
    CALLS += 1
    return x * CALLS


def opaque(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@refused(one, "NotPortable")
class AllowedInGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.compiler.allow_in_graph(opaque)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return opaque(x)


def made_by_exec() -> Any:
    scope: dict[str, Any] = {}
    exec("def made(x): return x * 2", scope)  # noqa: S102 - that is what is tried
    return scope["made"]


@case(one, "compiled", made=made_by_exec)
def calls_what_exec_made(self: Any, x: torch.Tensor) -> Any:
    return self.made(x)


@refused(one, "NotPortable")
def asks_for_base(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x._base is None else x._base * 3


@refused(one, "RandomOp")
def draws_numbers(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@refused(one, "GraphBreak")
def breaks_graph(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x
