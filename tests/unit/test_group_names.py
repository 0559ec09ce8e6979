"""A process group's name counts by its role where it names a collective's group, and literally elsewhere."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn

from tests.support.devices import fake_world
from tests.support.tracing import compiled, misfits
from warmrank.worker import groups


class Model(nn.Module):
    def __init__(self, group: Any, group_name: str = "attention") -> None:
        super().__init__()
        self.group = group
        self.group_name = group_name

    def reduces(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.group)

    def measures(self, x: torch.Tensor) -> Any:
        return x * len(self.group.group_name)

    def does_both(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.group) * len(self.group.group_name)

    def reads_its_own(self, x: torch.Tensor) -> Any:
        return x * len(self.group_name)


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    """Two groups of equal size, both of this rank."""
    with fake_world(rank=0, world_size=4):
        yield [dist.new_group([0, 1]), dist.new_group([0, 1])]


def fits(pair: list[Any], name: str) -> bool:
    """Whether what was compiled with one group may be used with the other, where that has the role."""
    first, second = (Model(group) for group in pair)
    x = torch.ones(2)
    groups.register({"tp": pair[0]})
    artifact = compiled(getattr(first, name), x)
    groups.register({"tp": pair[1]})
    return misfits(artifact, getattr(second, name), x) == ()


def test_group_of_a_collective_is_any_of_its_role(pair: list[Any]) -> None:
    assert fits(pair, "reduces")


@pytest.mark.parametrize("name", ["measures", "does_both"])
def test_name_that_serves_for_more_is_a_condition(pair: list[Any], name: str) -> None:
    assert pair[0].group_name != pair[1].group_name
    assert not fits(pair, name)


def test_attribute_of_that_name_of_another_object_is_a_plain_value(pair: list[Any]) -> None:
    assert fits(pair, "reads_its_own")
    x = torch.ones(2)
    artifact = compiled(Model(pair[0]).reads_its_own, x)
    assert misfits(artifact, Model(pair[0], "other").reads_its_own, x)
