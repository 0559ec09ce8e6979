"""Process groups that come, go, or change their roles while functions that use them are loaded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.devices import fake_world
from tests.support.small_models import Collective
from tests.support.tracing import cached, outcome
from warmrank.worker import groups
from warmrank.worker.errors import GroupError
from warmrank.worker.rank.workload import RankContext

pytestmark = pytest.mark.usefixtures("no_grad")
X = torch.ones(2)


class Ranked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + dist.get_rank()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A world of this process alone, whose groups are real ones."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/groups", rank=0, world_size=1)
    yield
    groups.declare_groups({})
    dist.destroy_process_group()


def test_declared_world_is_a_group_of_the_world() -> None:
    with fake_world(rank=2, world_size=4) as everyone:
        pair = dist.new_group([2, 3])
        groups.declare_groups({"world": pair})
        assert groups.resolve("world") == (pair.group_name, pair)
        assert (groups.role_of(pair), groups.role_of(everyone)) == ("world", "group0")


def test_role_that_reads_as_a_position_is_refused() -> None:
    with fake_world(rank=0, world_size=4):
        pair = dist.new_group([0, 1])
        with pytest.raises(GroupError, match="group1 is what warmrank calls a group without a role"):
            groups.declare_groups({"group1": pair})
        assert groups.role_of(pair) == "group1"


def test_role_goes_with_its_group_and_not_to_the_next_of_that_name() -> None:
    with fake_world(rank=0, world_size=4):
        pair = dist.new_group([0, 1])
        name = pair.group_name
        groups.declare_groups({"tp": pair})
        assert groups.role_of(name) == "tp"
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        other = dist.new_group([0, 2])
        assert other.group_name == name
        assert groups.role_of(name) == "group1"


def test_new_world_shows_though_it_may_lie_where_the_old_one_did() -> None:
    with fake_world(rank=0, world_size=4):
        pass
    states = []
    for _ in range(50):
        with fake_world(rank=0, world_size=4):
            states.append(groups.state())
    assert all(one != other for one, other in itertools.pairwise(states))


def test_rank_is_that_of_the_present_world(cache: Path) -> None:
    function = cached(Ranked().forward, cache)
    for call in range(24):
        with fake_world(rank=call % 4, world_size=4):
            assert function(X).tolist() == [1 + call % 4] * 2


@pytest.mark.parametrize("guards", ["always", "once", "skip"])
def test_group_that_was_made_anew_takes_the_place_of_the_old_one(
    cache: Path, alone: None, guards: Any
) -> None:
    model = Collective(dist.new_group([0]))
    function = cached(model.forward, cache, guards=guards)
    for _ in range(3):
        function(X)
    dist.destroy_process_group(model.group)
    model.group = dist.new_group([0])
    for _ in range(3):  # the old graph would ask for a group that is gone
        assert function(X).tolist() == [2, 2]
    assert outcome(function) == "loaded"


@pytest.mark.parametrize("guards", ["always", "once", "skip"])
def test_roles_that_were_declared_anew_count_from_the_next_call_on(
    cache: Path, alone: None, guards: Any
) -> None:
    one, other = dist.new_group([0]), dist.new_group([0])
    groups.declare_groups({"tp": one, "dp": other})
    model = Collective(one)
    function = cached(model.forward, cache, guards=guards)
    for _ in range(3):
        function(X)
    groups.declare_groups({"dp": one, "tp": other})
    model.group = other
    dist.destroy_process_group(one)
    for _ in range(3):
        assert function(X).tolist() == [2, 2]
    assert outcome(function) == "loaded"


def test_nothing_is_asked_again_where_no_group_changed(cache: Path, alone: None) -> None:
    function = cached(Collective(dist.new_group([0])).forward, cache)
    for _ in range(3):
        function(X)
    known = function.variants
    groups.declare_groups({"tp": dist.new_group([0])})  # another one, which the graph has no part in
    assert function(X).tolist() == [2, 2]
    assert function.variants == known


class Named(Collective):
    name: Any

    def forward(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.name)


def test_group_that_goes_by_a_name_of_the_callers_has_the_role_as_well(cache: Path) -> None:
    with fake_world(rank=0, world_size=4):
        one, other = dist.new_group([0, 1]), dist.new_group([0, 2])
        outcomes = []
        for declared in ({"tp": one, "dp": other}, {"dp": one, "tp": other}, {"tp": one, "dp": other}):
            groups.declare_groups(declared)
            model = Named(one)
            model.name = one.group_name
            function = cached(model.forward, cache)
            function(X)
            outcomes.append(outcome(function))
    assert outcomes == ["compiled", "compiled", "loaded"]


class Keeping(nn.Module):
    def __init__(self, context: RankContext) -> None:
        super().__init__()
        self.context = context

    def forward(self, x: torch.Tensor) -> Any:
        return x * (self.context.rank + 2)


def test_context_of_a_rank_may_be_kept_by_a_model(cache: Path) -> None:
    device = torch.device("cpu")
    context = RankContext(rank=1, world_size=2, local_rank=1, device_kind="cpu", device=device, groups={})
    for way in ("compiled", "loaded"):
        function = cached(Keeping(context).forward, cache)
        assert (function(X).tolist(), outcome(function)) == ([3, 3], way)
