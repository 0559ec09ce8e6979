"""A workload split over a tensor-parallel group, for engine torchair: a projection, a step with a cache."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce

from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import Verification

DIM, HIDDEN, ROWS = 8, 16, 4
TOLERANCE = 1e-5
# Sizes that are captured before the first request.
SIZES = (ROWS, ROWS // 2)


class Split(nn.Module):
    """Each rank of the group has a part of the hidden layer; results are summed over the ranks."""

    def __init__(self, group: dist.ProcessGroup, config: CompilerConfig) -> None:
        super().__init__()
        self.group = group
        up, down = weights()
        part = slice(*(HIDDEN * (group.rank() + end) // group.size() for end in (0, 1)))
        self.up, self.down = nn.Parameter(up[part].clone()), nn.Parameter(down[:, part].clone())
        self.cached_step = cache_compile(self.step, config=config)
        self.cached_project = cache_compile(self.project, config=config)

    def step(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """(rows, DIM); adds the projection to the cache."""
        cache.add_(all_reduce(self._part(x), "sum", self.group))
        return cache * 2

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, DIM); summed in place."""
        y = self._part(x)
        dist.all_reduce(y, group=self.group)
        return y + 1

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.up.t()) @ self.down.t()


def workload(
    context: RankContext, *, mode: str = "reduce-overhead", static_kernels: bool = False
) -> Workload:
    """Calls of both functions, and the comparison with the whole model on one rank."""
    config = CompilerConfig()
    config.mode = mode
    if static_kernels:
        config.experimental_config.aclgraph._aclnn_static_shape_kernel = True
        stand_in_for_dumps()
    model = Split(context.groups["tp"], config).requires_grad_(requires_grad=False)
    calls = (
        *(Call(function=model.cached_step, args=(inputs(rows), torch.zeros(rows, DIM))) for rows in SIZES),
        Call(function=model.cached_project, args=(inputs(ROWS),)),
    )
    return Workload(model=model, calls=calls, check=lambda: check(model))


def check(model: Split) -> Verification:
    """Each function several times, with other values than it was captured with."""
    worst = 0.0
    for rows in SIZES:
        cache = expected = torch.zeros(rows, DIM)
        for seed in range(3):
            x = inputs(rows, seed)
            expected = expected + whole(x)
            worst = max(worst, _difference(model.cached_step(x, cache), expected * 2))
            worst = max(worst, _difference(cache, expected))
            if rows == ROWS:
                worst = max(worst, _difference(model.cached_project(x), whole(x) + 1))
    return Verification(
        ok=worst <= TOLERANCE, max_error=worst, tolerance=TOLERANCE, compared="both functions with one rank"
    )


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    """(HIDDEN, DIM) and (DIM, HIDDEN), of the whole model."""
    generator = torch.Generator().manual_seed(11)
    return tuple(torch.randn(*shape, generator=generator) / 4 for shape in ((HIDDEN, DIM), (DIM, HIDDEN)))  # type: ignore[return-value]


def whole(x: torch.Tensor) -> torch.Tensor:
    """The projection on one rank."""
    up, down = weights()
    return torch.relu(x @ up.t()) @ down.t()


def inputs(rows: int, seed: int = 0) -> torch.Tensor:
    """(rows, DIM)."""
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))


def stand_in_for_dumps() -> None:
    """What CANN writes of each operator that runs, for op_compiler to read; and the choice of kernels."""
    native: Any = importlib.import_module("torchair.core._torchair")
    native.AclopStartDumpArgs = _dump
    native.AclopStopDumpArgs = lambda _: None
    importlib.import_module("torch_npu")._C._aclnn_reselect_static_kernel = lambda: None


def _dump(_: int, directory: str) -> None:
    place = Path(directory) / "ts_opcompile"
    place.mkdir()
    (place / "add.json").write_text("{}")


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max())
