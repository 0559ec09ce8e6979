"""A workload that is traced in a moment: two cached functions, and a sum over the ranks in both."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification


class Tiny(nn.Module):
    """Doubles, or adds one; then sums over the ranks."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.group = group
        self.linear = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.linear.weight)
        config = CompilerConfig()
        config.mode = "reduce-overhead"
        self.cached_twice = cache_compile(self.twice, config=config, dynamic=False)
        self.cached_increment = cache_compile(self.increment, config=config, dynamic=False)

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self._summed(self.linear(x) * 2)

    def increment(self, x: torch.Tensor) -> torch.Tensor:
        return self._summed(self.linear(x) + 1)

    def _summed(self, y: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            dist.all_reduce(y, group=self.group)
        return y


def workload(context: RankContext, *, rows: int = 3, fault: str = "", faulty_rank: int = 1) -> Workload:
    """The workload; ``fault`` makes one rank die, hang or raise while it is built."""
    if fault and context.rank == faulty_rank:
        _FAULTS[fault]()
    model = Tiny(context.groups.get("tp")).requires_grad_(requires_grad=False)
    x = torch.ones(rows, 4)

    def check() -> Verification:
        worst = float((model.cached_twice(x) - 2 * context.group_size("tp")).abs().max())
        return Verification(ok=worst == 0, max_error=worst, tolerance=0.0, compared="twice with arithmetic")

    calls = (Call(function=model.cached_twice, args=(x,)), Call(function=model.cached_increment, args=(x,)))
    return Workload(model=model, calls=calls, check=check)


def hashes(context: RankContext) -> Workload:
    """A workload whose check tells how its process hashes strings."""
    hashed = hash("warmrank") % 1_000_000

    def check() -> Verification:
        return Verification(ok=True, max_error=float(hashed), tolerance=1e6, compared="nothing")

    return replace(workload(context), check=check)


def _raise() -> Any:
    msg = "no weights here"
    raise FileNotFoundError(msg)


_FAULTS = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: signal.raise_signal(signal.SIGTERM),
    "hang": lambda: time.sleep(600),
    "raise": _raise,
}
