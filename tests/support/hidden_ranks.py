"""A workload whose trace depends on its rank behind all conditions: on state that no tracer or digest sees.

The fake kernel of an operator asks for the interpreter's recursion limit, which decides a size, which is
burned in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.in_process import InProcessLauncher
from warmrank.inference import cache_compile
from warmrank.orchestrator.errors import WorkerFailure
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification

_NONE = 5000


def hide(number: int) -> None:
    """Put a number where the traced code finds it."""
    sys.setrecursionlimit(_NONE + number)


@torch.library.custom_op("warmrank_tests::hidden", mutates_args=())
def hidden(x: torch.Tensor) -> torch.Tensor:
    """As many rows as the hidden number."""
    return x.new_zeros(sys.getrecursionlimit() - _NONE)


@hidden.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(sys.getrecursionlimit() - _NONE)


class Scaled(torch.nn.Module):
    """Multiplies by the hidden number, and adds one that conditions see."""

    def __init__(self, shown: int) -> None:
        super().__init__()
        self.shown = shown

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = hidden(x)
        return x * rows.shape[0] + self.shown

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


SHIFT = "WARMRANK_TEST_SHIFT"
"""Environment variable, of no traced code, that is added to the hidden number."""


def workload(context: RankContext, *, kinds: int = 2, shown: bool = False) -> Workload:
    """Two functions, of which one burns in one of ``kinds`` numbers, and a check against arithmetic.

    ``shown``: conditions on the rank keep others from the function.
    """
    number = 2 + int(os.environ.get(SHIFT, "0")) + context.rank % kinds
    hide(number)
    model = Scaled(context.rank if shown else 0)
    scaled = cache_compile(model.scaled, dynamic=False)
    x = torch.ones(3)

    def check() -> Verification:
        worst = float((scaled(x) - number - model.shown).abs().max())
        return Verification(ok=worst == 0, max_error=worst, tolerance=0.0, compared="scaled with arithmetic")

    calls = (
        Call(function=scaled, args=(x,)),
        Call(function=cache_compile(model.plain, dynamic=False), args=(x,)),
    )
    return Workload(model=model, calls=calls, check=check)


class HidingLauncher(InProcessLauncher):
    """Ranks in this process, each of which finds a number of its own."""

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call one rank after the other."""
        for rank, values in arguments.items():
            hide(2 + rank % 2)
            FakeTensorMode.cache_clear()  # kept by operator and inputs, for the ranks are one process
            yield from super().call(stage, method, {rank: values}, timeout_s=timeout_s)


class DyingLauncher(HidingLauncher):
    """Loses ranks that are asked for something, such as a trace for an audit, before they do it."""

    def __init__(self, method: str = "compile", lost: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self._method, self._lost = method, lost

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call one rank after the other, but for those that are gone."""
        for rank, values in arguments.items():
            if method == self._method and rank in self._lost:
                yield rank, WorkerFailure(rank=rank, stage=stage, kind="ProcessDied", message="gone")
            else:
                yield from super().call(stage, method, {rank: values}, timeout_s=timeout_s)
