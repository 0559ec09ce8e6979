"""Two ranks, forks of this process: ``two_ranks STORE_FILE NAME``, one of `WHAT`; prints a line for each."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.support.compare import cloned
from tests.support.devices import STAND_IN, make_backend, runner
from tests.support.forks import crowd
from warmrank.examples import llama
from warmrank.examples.llama_model import build_model
from warmrank.examples.llama_weights import LlamaSizes, full_weights
from warmrank.inference import cache_compile, set_dim_gears
from warmrank.worker.devices import CpuBackend
from warmrank.worker.torch_private.places import leaves

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


def apart(rank: int) -> str:
    """Compare calls with what they must give, where the ranks capture at different calls, or one in vain."""
    assert dist.group.WORLD is not None
    name = dist.group.WORLD.group_name

    def added(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        return (cache.add_(ops.wait_tensor(ops.all_reduce(x.sum(0), "sum", name))) * 2,)

    def found(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        (doubled,) = added(cache, x)
        return doubled, torch.nonzero(x)  # which nothing can record

    numbers_of_rows = ((1, 1, 1, 2, 2, 3, 3, 1), (1, 2, 3, 4, 4, 2, 2, 2))
    with torch.no_grad():
        for kind, graph in itertools.product(("cpu", STAND_IN), (added, found)):
            run = runner(graph, "mutated", "user", backend=make_backend(kind))
            cache = torch.zeros(3)
            for step, numbers in enumerate(zip(*numbers_of_rows, strict=True)):
                cache = torch.zeros(3) if rank else cache.zero_()
                if step % 3 == 1:
                    run.prepare(cache, torch.ones(2, 3))
                doubled, *_ = run(cache, torch.full((numbers[rank], 3), 1.0 + step))
                assert torch.equal(cache, torch.full((3,), sum(numbers) * (1.0 + step))), (kind, step, cache)
                assert torch.equal(doubled, cache * 2)
    return "equal"


@torch.library.custom_op("two_ranks::started", mutates_args=())
def started(x: torch.Tensor) -> torch.Tensor:
    """Starts a collective that `wait_tensor` waits for."""
    assert dist.group.WORLD is not None
    begun: torch.Tensor = ops.all_reduce(x, "sum", dist.group.WORLD.group_name)
    return begun


@started.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Sending(torch.nn.Module):
    """Methods whose ranks trace, capture and pad at calls of their own."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.second = dist.new_group([1])

    def unused(self, x: torch.Tensor, flag: Any) -> Any:
        begun = torch.ops.two_ranks.started(x * 1.0)
        total = x.sum()
        dist.all_reduce(total)
        return total * (2 if flag else 1), ops.wait_tensor(begun) * 1.0 if self.rank == 0 else x * 1.0

    def of_constant(self, x: torch.Tensor, flag: Any) -> Any:
        number, total = torch.tensor(1.0), x.sum()
        dist.all_reduce(number)
        dist.all_reduce(total)
        return total * number * (2 if flag else 1)

    def told(self, x: torch.Tensor, flag: Any) -> Any:
        first, second = x * 1.0, x + 1
        dist.broadcast(first, 0)
        dist.broadcast(second, group=dist.group.WORLD, async_op=False, group_src=1)
        return first * (2 if flag else 1), second

    def exchanged(self, x: torch.Tensor, flag: Any) -> Any:
        total, largest = x * (2 if flag else 1), x.sum()
        taken, every = ([torch.empty(shape), torch.empty(shape)] for shape in ((2, 3), (3, 2)))
        dist.all_to_all(taken, [total, x + self.rank])
        dist.gather(x.t(), every if self.rank else None, 1, async_op=False)
        dist.reduce(total, dst=1)
        dist.reduce(largest, 0, dist.ReduceOp.MAX, dist.group.WORLD)
        return taken, every[: 2 * self.rank], total if self.rank else x, x if self.rank else largest

    def of_one(self, x: torch.Tensor, flag: Any) -> Any:
        total, every = x * (2 if flag else 1), [torch.zeros(2, 3)]
        dist.gather(total, every if self.rank else None, 1, self.second)
        dist.all_to_all(every, [every[0] + 1], group=self.second)
        dist.reduce(total, 1, group=self.second)
        dist.broadcast(total, 1, self.second)
        dist.all_reduce(total, group=self.second)
        return total, every

    def waits_later(self, x: torch.Tensor, flag: Any) -> Any:
        begun = torch.ops.two_ranks.started(x.expand(50000, *x.shape) * 1.0)
        other = x * (2 if flag else 1)
        return ops.wait_tensor(begun)[:2] * 1.0, other

    def waits_for_input(self, x: torch.Tensor, flag: Any) -> Any:
        return ops.wait_tensor(x)[:2] * (2 if flag else 1)

    def padded(self, x: torch.Tensor, flag: Any) -> Any:
        first = flag * 1.0
        dist.all_reduce(first)
        return x * 2, first


def sending(rank: int) -> str:
    """Compare what is cached, in a directory for each rank, with eager."""
    assert dist.group.WORLD is not None
    name, model = dist.group.WORLD.group_name, Sending(rank)

    def given(method: str, call: int) -> tuple[Any, ...]:
        rows = (2, 3)[call == (5, 2)[rank]]
        x = torch.full((rows if method == "padded" else 2, 3), 1.0 + call + 10 * rank)
        if method == "padded":
            if call == 0:
                set_dim_gears(x, {0: [2, 4]})
            return x, torch.full((2,), 1.0 + call)
        if method == "waits_for_input":
            x = ops.all_reduce(x.expand(50000, 2, 3) * 1.0, "sum", name)
        return x, call != (5, 2)[rank]

    waiting = ("waits_later", "waits_for_input", "padded")
    for method in ("unused", "of_constant", "told", "exchanged", "of_one", *waiting):
        function = getattr(model, method)
        with tempfile.TemporaryDirectory() as directory, torch.no_grad():
            cached = cache_compile(function, cache_dir=directory, on_gear_miss="pad")
            got, wanted = ([cloned(f(*given(method, call))) for call in range(8)] for f in (cached, function))
        assert all(torch.equal(*pair) for pair in zip(leaves(got), leaves(wanted), strict=True)), method
    return "equal"


def split_llama(rank: int) -> str:
    """Compare the example's eager Llama, split over the ranks, with the whole one."""
    sizes = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=2, hidden=48, max_seq=32)
    weights = full_weights(sizes)
    model = build_model(sizes, weights, group=dist.group.WORLD, cached=False)
    result = llama.check(model, weights, (5, 9), 4, dist.group.WORLD)
    assert result.ok, result.max_error
    return f"heads={model.layers[0].attention.heads}"


WHAT: dict[str, Callable[[int], str]] = {
    "collectives": collectives, "apart": apart, "sending": sending, "llama": split_llama,
}  # fmt: skip


def run_rank(rank: int, store: str, what: str) -> str:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    printed = WHAT[what](rank)
    dist.barrier()  # a peer that leaves early can abort this process from one of gloo's threads
    return printed


if __name__ == "__main__":
    print(*crowd(2, lambda rank: run_rank(rank, *sys.argv[1:])), sep="\n")  # noqa: T201 - the answer
