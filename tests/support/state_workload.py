"""A workload that measures what its graphs depend on before it can declare it, as a server its KV cache."""

from __future__ import annotations

import torch

from tests.support.tiny_workload import Tiny
from warmrank.worker.rank.workload import Call, RankContext, Workload

MEASURED: dict[int, int] = {}
"""What each rank measures: tests write it, as memory that is free would decide it."""


def workload(context: RankContext) -> Workload:
    model = Tiny(None).requires_grad_(requires_grad=False)
    x = torch.ones(3, 4)
    calls = (Call(function=model.cached_twice, args=(x,)), Call(function=model.cached_increment, args=(x,)))
    return Workload(model=model, calls=calls, runtime_state={"kv_cache_blocks": MEASURED[context.rank]})
