"""One rank of two that capture functional collectives and replay them: ``captured_rank.py RANK STORE``."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from warmrank.worker.devices.cpu import CpuBackend

ops = torch.ops._c10d_functional


def collectives(x: torch.Tensor, group: str) -> tuple[Any, ...]:
    """All kinds: alone, of lists, and in place."""
    wait = ops.wait_tensor
    summed = wait(ops.all_reduce(x * 2, "sum", group))
    gathered = wait(ops.all_gather_into_tensor(summed + x, 2, group))
    scattered = wait(ops.reduce_scatter_tensor(gathered, "sum", 2, group))
    first, second = ops.all_reduce_coalesced([x + 1, x + 2], "max", group)
    placed = x * 3
    wait(ops.all_reduce_(placed, "sum", group))
    return summed + 1, gathered, scattered, wait(first) * 2, wait(second), placed - 1


def main(rank: int, store: str) -> None:
    """Compare replays with eager for three inputs."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    assert dist.group.WORLD is not None
    name = dist.group.WORLD.group_name
    backend = CpuBackend()
    with torch.no_grad():
        captured = backend.capture(
            lambda x: collectives(x, name),
            [torch.ones(4, 3)],
            copied=frozenset({0}),
            aliased=frozenset(),
            pool=backend.pool(),
        )
        for step in range(3):
            x = torch.arange(12.0).reshape(4, 3) * (rank + 1) + step
            captured.inputs[0].copy_(x)
            captured.replay()
            for ours, eager in zip(captured.outputs, collectives(x, name), strict=True):
                assert torch.equal(ours, eager)
    dist.barrier()  # a peer that leaves early can end this process from one of gloo's own threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
