"""Names of process groups, as a graph holds them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.support.fake_group import fake_world
from tests.support.tracing import traced
from worker.torch_private.process_groups import group_name, known_groups

ROWS = torch.ones(2, 4)


def test_known_groups_are_in_the_order_of_their_creation() -> None:
    with fake_world(rank=0, world_size=4) as world:
        made = [dist.new_group([0, 1]), dist.new_group([0, 2])]
        assert list(known_groups()) == [group_name(group) for group in (world, *made)]


def test_known_groups_without_torch_distributed_are_none() -> None:
    assert known_groups() == {}


def test_name_of_a_group_is_what_the_graph_holds() -> None:
    class Sums(nn.Module):
        def __init__(self, group: Any) -> None:
            super().__init__()
            self.group = group

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y, group=self.group)
            return y

    with fake_world(rank=0, world_size=2):
        group = dist.new_group([0, 1])
        graph = traced(Sums(group).forward, ROWS).lowered.graph.graph
        arguments = itertools.chain.from_iterable(node.args for node in graph.nodes)
        assert group_name(group) in [item for item in arguments if isinstance(item, str)]
