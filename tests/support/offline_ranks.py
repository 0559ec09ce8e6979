"""Ranks of an offline build without torch, for tests of its driver; and small workloads for real ones."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.support.devices import fake_world
from tests.support.fake_rank import FakeRank, FakeWorld
from tests.support.in_process import InProcessLauncher
from tests.support.stored import make_partition
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.inference import cache_compile
from warmrank.orchestrator.build.ranks import OfflineHost
from warmrank.orchestrator.gang.launcher import Process, place_ranks
from warmrank.orchestrator.gang.rank_host import Opened, RankHost, RankInit
from warmrank.orchestrator.nodes import Gang
from warmrank.worker import groups
from warmrank.worker.configs.compiler_config import CompilerConfig, LaunchDefaults, launch_scope
from warmrank.worker.rank.workload import Call, RankContext, Workload
from warmrank.worker.results import LeftOut


class FakeOfflineRank(FakeRank):
    """A fake rank whose partition really lies in the cache directory."""

    def rank_bound(self) -> tuple[str, ...]:
        return ()

    def left_out(self) -> tuple[LeftOut, ...]:
        return ()

    def manifest(self) -> PartitionManifest:
        kind, spec = self.world.kind_of(self.spec.rank), self.spec
        functions = {name: f"{name} of {kind}".encode() for name in self.results}
        return make_partition(
            Path(spec.cache_dir), rank=spec.rank, world_size=spec.world_size, functions=functions
        )


class FakeOfflineLauncher(InProcessLauncher):
    """Runs `FakeOfflineRank` in this process; ``opened`` says which were."""

    def __init__(self, ranks: Sequence[int], world: FakeWorld | None = None) -> None:
        super().__init__()
        self._ranks = tuple(ranks)
        self.world = world or FakeWorld()
        self.opened: list[int] = []

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        assert num_ranks == len(self._ranks)
        own = {rank: _Host(self) for rank in self._ranks}
        self._hosts = [own.get(rank, RankHost()) for rank in range(max(self._ranks) + 1)]
        process = Process(node_id="here", host="here", address="", pid=1)
        _, placements = place_ranks([process] * len(self._hosts))
        return Gang(placements=tuple(placements[rank] for rank in self._ranks), master_addr="", master_port=0)


class _Host(OfflineHost):
    def __init__(self, launcher: FakeOfflineLauncher) -> None:
        super().__init__()
        self._launcher = launcher

    def open(self, init: RankInit, *_more: object) -> Opened:
        self._launcher.opened.append(init.spec.rank)
        self._take(init)
        self.worker = FakeOfflineRank(self._launcher.world, init.spec, None)  # type: ignore[assignment]
        return Opened(environment=self.worker.start(), problem="")


class Small(nn.Module):
    """A layer split over a group, in whose methods one thing each goes wrong offline."""

    def __init__(self, group: dist.ProcessGroup | None, width: int = 4) -> None:
        super().__init__()
        self.group = group
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        if self.group is not None:
            dist.all_reduce(y, group=self.group)
        return y

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if self.group is not None:
            dist.all_reduce(y, group=self.group)
        return y

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if self.group is not None and dist.is_available() and dist.is_initialized():
            parts = [torch.empty_like(y) for _ in range(dist.get_world_size(self.group))]
            dist.all_gather(parts, y, group=self.group)
            y = torch.cat(parts, -1)
        return y

    def by_rank(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x) * (dist.get_rank() + 1)
        return y


def small(context: RankContext, *, method: str = "forward", kernels: bool = False) -> Workload:
    """One function of `Small`; with ``kernels`` another one, which is compiled to kernels."""
    torch.manual_seed(0)
    assert not multiprocessing.current_process().daemon, "a model may start processes"
    model = Small(context.groups.get("tp")).to(context.device).requires_grad_(requires_grad=False).eval()
    x = torch.ones(2, 4, device=context.device)
    calls = [Call(function=cache_compile(getattr(model, method)), args=(x,))]
    if kernels:
        config = CompilerConfig()
        config.mode = "max-autotune"
        calls.append(Call(function=cache_compile(model.by_rank, config=config), args=(x,)))
    return Workload(model=model, calls=tuple(calls))


@contextlib.contextmanager
def rank_of(
    rank: int, world_size: int, cache: Path, *, device_kind: str = "cpu", no_compile: bool = True
) -> Iterator[RankContext]:
    """This process as a rank with real tensors, whose collectives change nothing."""
    with fake_world(rank=rank, world_size=world_size) as world:
        for _ in ("dp", "pp"):  # a launch makes them before, and TorchAir's text has the groups' names
            dist.new_group([rank])
        pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1])
        groups.declare_groups({"tp": pair, "world": world})
        with launch_scope.of(LaunchDefaults(cache_dir=str(cache), no_compile=no_compile)):
            yield RankContext(
                rank=rank,
                world_size=world_size,
                local_rank=0,
                device_kind=device_kind,
                device=torch.device("cpu"),
                groups={"tp": pair, "world": world},
            )


def _forward(model: Small, **options: Any) -> Workload:
    """One call of the model's function."""
    call = Call(function=cache_compile(model.forward, **options), args=(torch.ones(2, 4),))
    return Workload(model=model, calls=(call,))


def asks_for_values(context: RankContext) -> Workload:
    """Decides by the values of a weight."""
    model = Small(None)
    if float(model.linear.weight.detach().sum()) > 1e9:
        model.linear = nn.Linear(4, 4, bias=False)
    return _forward(model)


def asks_for_addresses(context: RankContext) -> Workload:
    """Decides by where a weight lies."""
    model = Small(None)
    assert model.linear.weight.data_ptr() != model.linear.bias.data_ptr()
    return _forward(model)


def hangs(context: RankContext) -> Workload:
    """Waits for what never comes."""
    threading.Event().wait()
    raise AssertionError


def decomposes_with_a_table(context: RankContext) -> Workload:
    """A decomposition that holds a tensor, whose values would go into the graph."""
    model = Small(None).requires_grad_(requires_grad=False)
    table = torch.arange(4.0).sin()
    return _forward(model, custom_decompositions={torch.ops.aten.add.Tensor: lambda one, _: one * table})
