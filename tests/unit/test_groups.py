"""Process groups by role."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.support.devices import fake_world
from warmrank.worker import groups
from warmrank.worker.errors import GroupError
from warmrank.worker.torch_private.process_groups import group_name

World = tuple[dist.ProcessGroup, dist.ProcessGroup, dist.ProcessGroup]


@pytest.fixture
def world() -> Iterator[World]:
    """Rank 1 of 4: the world, its own group of two, and a group of one."""
    with fake_world(rank=1, world_size=4) as everyone:
        pair = dist.new_group([0, 1])
        dist.new_group([2, 3])  # this rank is not in it
        alone = dist.new_group([1])
        yield everyone, pair, alone


def test_role_that_was_registered_is_used(world: World) -> None:
    groups.register({"tp": world[1]})
    assert groups.role_of(world[1]) == "tp"


def test_unknown_name_is_refused_with_the_known_ones(world: World) -> None:
    with pytest.raises(GroupError, match=r"no process group named 'nobody'; known: \['") as raised:
        groups.role_of("nobody")
    assert raised.value.name == "nobody"


@pytest.mark.parametrize(("role", "position"), [("world", 0), ("tp", 1), ("group2", 2)])
def test_resolve_gives_name_and_group_of_a_role(world: World, role: str, position: int) -> None:
    groups.register({"tp": world[1]})
    assert groups.resolve(role) == (group_name(world[position]), world[position])
