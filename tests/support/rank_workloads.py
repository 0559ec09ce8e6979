"""Entrypoints for tests of one rank."""

from __future__ import annotations

import torch

from tests.support.small_models import Cached, Plain, Unfit
from warmrank.inference import cache_compile
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification

ROWS = torch.arange(8.0).reshape(2, 4).clone()


def plain(
    context: RankContext,
    *,
    factor: int = 2,
    dynamic: bool = True,
    cache_dir: str | None = None,
    on_recompile: str = "add",
) -> Workload:
    """Two functions, one of them called with two sizes, and a check against eager."""
    model = Plain().requires_grad_(requires_grad=False)
    model.factor = factor
    affine = cache_compile(model.affine, dynamic=dynamic, cache_dir=cache_dir, on_recompile=on_recompile)
    scaled = cache_compile(model.scaled, dynamic=dynamic, cache_dir=cache_dir)
    large = torch.ones(6, 4)

    def check() -> Verification:
        worst = float((affine(ROWS) - model.affine(ROWS)).abs().max())
        return Verification(ok=worst == 0, max_error=worst, tolerance=0.0, compared="affine with eager")

    calls = (
        Call(function=affine, args=(ROWS,)),
        Call(function=scaled, args=(ROWS,), kwargs={"negate": True}),
        Call(function=affine, args=(large,)),
    )
    return Workload(model=model, calls=calls, check=check)


def unchecked(context: RankContext) -> Workload:
    """One function that writes to a buffer; no check."""
    model = Cached().requires_grad_(requires_grad=False)
    return Workload(model=model, calls=(Call(function=cache_compile(model.accumulate), args=(ROWS,)),))


def sized(context: RankContext, *, writes: bool = False) -> Workload:
    """One call of two rows; the check asks twice for five and for eight, and once for seven."""
    model = Cached() if writes else Plain()
    model.requires_grad_(requires_grad=False)
    method = model.accumulate if isinstance(model, Cached) else model.affine
    function = cache_compile(method)

    def check() -> Verification:
        for rows in (5, 8, 7, 5, 8):
            function(torch.ones(rows, 4))
        return Verification(ok=True, max_error=0.0, tolerance=0.0, compared="nothing")

    return Workload(model=model, calls=(Call(function=function, args=(ROWS,)),), check=check)


def half_unfit(context: RankContext) -> Workload:
    """A function that can be cached, and one that cannot."""
    model = Unfit().requires_grad_(requires_grad=False)
    plain_model = Plain().requires_grad_(requires_grad=False)
    calls = (
        Call(function=cache_compile(model.breaks), args=(ROWS,)),
        Call(function=cache_compile(plain_model.affine), args=(ROWS,)),
    )
    return Workload(model=model, calls=calls)


def wrong(context: RankContext) -> int:
    return 3
