"""A script for two ranks of torchrun or a launch: a cached function on each; prints how it got its code."""

from __future__ import annotations

import os

import torch
import torch.distributed

import warmrank
from warmrank import CompilerConfig


class Model(torch.nn.Module):
    """One cached function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        config = CompilerConfig()
        config.mode = "reduce-overhead"
        self.cached_scale = warmrank.inference.cache_compile(self.scale, config=config)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """Once each."""
        return x * self.weight


def main() -> None:
    torch.distributed.init_process_group("gloo")
    assert torch.distributed.get_world_size() == 2
    assert os.environ["OMP_NUM_THREADS"] == "1"
    model = Model()
    assert model.cached_scale(torch.ones(3, 2)).sum() == 6
    result = model.cached_scale.last_result
    assert result is not None
    print(  # noqa: T201 - its output is what a test reads
        f"rank {torch.distributed.get_rank()} {result.outcome}", flush=True
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
