"""Names of process groups, as a graph holds them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn

from tests.support.devices import fake_world
from tests.support.launching import rank_spec
from tests.support.tracing import compiled, misfits
from warmrank.worker import groups
from warmrank.worker.errors import GroupError, PortInUse
from warmrank.worker.rank import start


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, timedelta]:
    """Time-outs that torch is asked for, by what is made; nothing is made."""
    found: dict[str, timedelta] = {}

    def world(backend: str, *, timeout: timedelta, **_: Any) -> None:
        found["world"] = timeout

    def group(ranks: list[int], *, timeout: timedelta, use_local_synchronization: bool) -> str:
        assert use_local_synchronization, "all ranks of the world would meet for each group"
        found[str(ranks)] = timeout
        return "a group"

    monkeypatch.setattr(dist, "init_process_group", world)
    monkeypatch.setattr(dist, "new_group", group)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD="the world"))
    for name in ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"):
        monkeypatch.setenv(name, "")
    return found


SPEC = rank_spec(Path("cache"), groups={"world": (0,), "tp": (0,)}, timeout_s=200.0)


def test_rank_makes_its_own_groups_only_and_roles_in_one_order(asked: dict[str, timedelta]) -> None:
    spec = rank_spec(
        Path("cache"),
        rank=2,
        world_size=4,
        groups={"world": (0, 1, 2, 3), "tp": (2, 3), "dp": (0, 2)},
    )
    assert list(start.start_groups(spec, "gloo")) == ["world", "dp", "tp"]
    assert list(asked) == ["world", "[0, 2]", "[2, 3]"]


def test_hccl_times_out_by_the_launch_and_torch_s_watchdog_after_it(asked: dict[str, timedelta]) -> None:
    start.start_groups(SPEC, "hccl")
    assert (os.environ["HCCL_CONNECT_TIMEOUT"], os.environ["HCCL_EXEC_TIMEOUT"]) == ("200", "200")
    assert asked == {"world": timedelta(seconds=260), "[0]": timedelta(seconds=260)}


def test_port_that_another_process_has_taken_is_told_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = rank_spec(tmp_path, master_addr="127.0.0.1", master_port=taken.getsockname()[1])
        with pytest.raises(PortInUse, match="another process's now"):
            start.start_groups(spec, "gloo")


World = tuple[dist.ProcessGroup, dist.ProcessGroup, dist.ProcessGroup]


@pytest.fixture
def world() -> Iterator[World]:
    """Rank 1 of 4: the world, its own group of two, and a group of one."""
    with fake_world(rank=1, world_size=4) as everyone:
        pair = dist.new_group([0, 1])
        dist.new_group([2, 3])  # this rank is not in it
        alone = dist.new_group([1])
        yield everyone, pair, alone


def test_unknown_name_is_refused_with_the_known_ones(world: World) -> None:
    with pytest.raises(GroupError, match=r"no process group named 'nobody'; known: \['") as raised:
        groups.role_of("nobody")
    assert raised.value.name == "nobody"


@pytest.mark.parametrize(("role", "position"), [("world", 0), ("tp", 1), ("group2", 2)])
def test_resolve_gives_name_and_group_of_a_role(world: World, role: str, position: int) -> None:
    groups.declare_groups({"tp": world[1]})
    assert groups.resolve(role) == (world[position].group_name, world[position])


class Model(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def reduces(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.group)

    def measures(self, x: torch.Tensor) -> Any:
        return x * len(self.group.group_name)

    def does_both(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.group) * len(self.group.group_name)


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    """Two groups of equal size, both of this rank."""
    with fake_world(rank=0, world_size=4):
        yield [dist.new_group([0, 1]), dist.new_group([0, 1])]


def fits(pair: list[Any], name: str) -> bool:
    """Whether what was compiled with one group may be used with the other, where that has the role."""
    first, second = (Model(group) for group in pair)
    x = torch.ones(2)
    groups.declare_groups({"tp": pair[0]})
    artifact = compiled(getattr(first, name), x)
    groups.declare_groups({"tp": pair[1]})
    return misfits(artifact, getattr(second, name), x) == ()


def test_group_of_a_collective_is_any_of_its_role(pair: list[Any]) -> None:
    assert fits(pair, "reduces")


@pytest.mark.parametrize("name", ["measures", "does_both"])
def test_name_that_serves_for_more_is_a_condition(pair: list[Any], name: str) -> None:
    assert pair[0].group_name != pair[1].group_name
    assert not fits(pair, name)
