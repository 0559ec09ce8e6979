"""Launches struck at random, from a seed that repeats them: each ends warm or with a true error.

`make chaos` runs many, and `make chaos CHAOS_SEED=S CHAOS_ONLY=N` one of them again.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import netns
from tests.support.chaos import NodesRoom, OwnRoom, plan_of, run
from tests.support.netns_cluster import ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(900)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each launch."""
    option = metafunc.config.getoption
    numbers = (
        range(option("--chaos-launches")) if option("--chaos-only") is None else [option("--chaos-only")]
    )
    metafunc.parametrize("number", numbers)


@pytest.fixture(scope="module")
def own_room() -> Iterator[OwnRoom]:
    base = Path(tempfile.mkdtemp(prefix="wrc", dir="/tmp"))  # a socket's path may have 107 bytes
    (base / "t").mkdir()
    (base / "room").mkdir()
    yield OwnRoom(base / "room", base / "t")
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def nodes_room() -> Iterator[Callable[[], NodesRoom]]:
    """Gives nodes, which come up with the first launch on them."""
    rooms: list[NodesRoom] = []
    with contextlib.ExitStack() as up:

        def room() -> NodesRoom:
            if not rooms:
                nodes = up.enter_context(ray_nodes(NodesRoom.num_nodes, num_cpus=2))
                rooms.append(NodesRoom(nodes))
            return rooms[0]

        yield room


@pytest.fixture(scope="session")
def with_nodes(pytestconfig: pytest.Config) -> bool:
    """Whether some launches run on nodes in network namespaces."""
    return bool(pytestconfig.getoption("--chaos-nodes")) and not netns.why_not()


@pytest.mark.slow
def test_launch_ends_warm_or_with_a_true_error(
    pytestconfig: pytest.Config,
    number: int,
    own_room: OwnRoom,
    nodes_room: Callable[[], NodesRoom],
    *,
    with_nodes: bool,
) -> None:
    seed = pytestconfig.getoption("--chaos-seed")
    plan = plan_of(seed, number, with_nodes=with_nodes)
    outcome = run(nodes_room() if plan.place == "nodes" else own_room, plan)
    # What `make chaos` shows; what is wrong at once, because a run takes an hour.
    print("\n".join([f"\nchaos {outcome.line(plan)}", *outcome.wrong]), flush=True)  # noqa: T201
    assert not outcome.wrong, "\n".join(
        [
            *outcome.wrong,
            f"seed {seed}, launch {outcome.line(plan)}",
            f"again: make chaos CHAOS_SEED={seed} CHAOS_ONLY={number}",
            outcome.said,
        ]
    )
