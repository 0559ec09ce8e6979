"""Two ranks, forks of this process: ``two_ranks STORE_FILE collectives|llama``; prints a line for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.support.forks import crowd
from warmrank.examples import llama
from warmrank.examples.llama_model import build_model
from warmrank.examples.llama_weights import LlamaSizes, full_weights
from warmrank.worker.devices import CpuBackend

ops = torch.ops._c10d_functional


def captured(x: torch.Tensor, group: str) -> tuple[Any, ...]:
    """All kinds of functional collectives: alone, of lists, and in place."""
    wait = ops.wait_tensor
    summed = wait(ops.all_reduce(x * 2, "sum", group))
    gathered = wait(ops.all_gather_into_tensor(summed + x, 2, group))
    scattered = wait(ops.reduce_scatter_tensor(gathered, "sum", 2, group))
    first, second = ops.all_reduce_coalesced([x + 1, x + 2], "max", group)
    placed = x * 3
    wait(ops.all_reduce_(placed, "sum", group))
    return summed + 1, gathered, scattered, wait(first) * 2, wait(second), placed - 1


def collectives(rank: int) -> str:
    """Compare replays of a captured graph with eager for three inputs."""
    assert dist.group.WORLD is not None
    name = dist.group.WORLD.group_name
    backend = CpuBackend()
    with torch.no_grad():
        graph = backend.capture(
            lambda x: captured(x, name),
            [torch.ones(4, 3)],
            copied=frozenset({0}),
            aliased=frozenset(),
            pool=backend.pool(),
        )
        for step in range(3):
            x = torch.arange(12.0).reshape(4, 3) * (rank + 1) + step
            graph.inputs[0].copy_(x)
            graph.replay()
            for ours, eager in zip(graph.outputs, captured(x, name), strict=True):
                assert torch.equal(ours, eager)
    return "equal"


def split_llama(rank: int) -> str:
    """Compare the example's eager Llama, split over the ranks, with the whole one."""
    sizes = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=2, hidden=48, max_seq=32)
    weights = full_weights(sizes)
    model = build_model(sizes, weights, group=dist.group.WORLD, cached=False)
    result = llama.check(model, weights, (5, 9), 4, dist.group.WORLD)
    assert result.ok, result.max_error
    return f"heads={model.layers[0].attention.heads}"


WHAT: dict[str, Callable[[int], str]] = {"collectives": collectives, "llama": split_llama}


def run_rank(rank: int, store: str, what: str) -> str:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    printed = WHAT[what](rank)
    dist.barrier()  # a peer that leaves early can abort this process from one of gloo's threads
    return printed


if __name__ == "__main__":
    print(*crowd(2, lambda rank: run_rank(rank, *sys.argv[1:])), sep="\n")  # noqa: T201 - the answer
