"""A workload whose ranks differ in a number that no request shows; one that compiles on some ranks."""

from __future__ import annotations

import torch
from tests.support.workloads import ROWS

from tests.support.small_models import Plain
from warmrank.inference import cache_compile
from warmrank.worker.rank.workload import Call, RankContext, Workload


def by_rank(context: RankContext, *, num_kinds: int) -> Workload:
    """Ranks burn in one of ``num_kinds`` factors, in turn."""
    model = Plain().requires_grad_(requires_grad=False)
    model.factor = 2 + context.rank % num_kinds
    return Workload(model=model, calls=(Call(function=cache_compile(model.affine), args=(ROWS,)),))


class Picky(torch.nn.Module):
    """Has a graph break in one function where it is told so."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.breaks = breaks

    def fragile(self, x: torch.Tensor) -> torch.Tensor:
        if self.breaks:
            torch._dynamo.graph_break()
        return x * 2

    def sound(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def picky(context: RankContext, *, broken: list[int]) -> Workload:
    """One function that does not compile on the ranks named, and one that does everywhere."""
    model = Picky(breaks=context.rank in broken)
    functions = [cache_compile(model.fragile), cache_compile(model.sound)]
    return Workload(model=model, calls=tuple(Call(function=each, args=(ROWS,)) for each in functions))
