"""One rank of an offline build, in this process: what it makes is what a rank of a launch makes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.devices import fake_world
from tests.support.launching import rank_spec
from tests.support.offline_ranks import small
from warmrank.worker import groups
from warmrank.worker.errors import NeedsValues
from warmrank.worker.keys.environment import Target, environment
from warmrank.worker.rank.offline import OfflineRank
from warmrank.worker.rank.start import RankSpec
from warmrank.worker.rank.workload import RankContext, Workload
from warmrank.worker.results import FunctionResult
from warmrank.worker.runtime.options import LaunchDefaults, launch_scope

pytestmark = pytest.mark.usefixtures("no_grad")

HERE = "tests.support.offline_ranks"
PAIRS = {"world": (tuple(range(8)),), "tp": ((0, 1), (2, 3), (4, 5), (6, 7))}


def spec_of(cache: Path, *, rank: int = 1, entrypoint: str = "small", **changed: Any) -> RankSpec:
    return rank_spec(
        cache, rank=rank, world_size=8, groups=PAIRS, entrypoint=f"{HERE}:{entrypoint}", **changed
    )


@contextlib.contextmanager
def offline(spec: RankSpec, **changed: str) -> Iterator[OfflineRank]:
    """A rank that is up; ``changed`` components of its machines are others than this one's."""
    machines = Target(device_kind=spec.device_kind, environment={**environment(), **changed})
    rank = OfflineRank(spec, machines=machines)
    rank.start()
    try:
        yield rank
    finally:
        rank.stop()


def compiled(rank: OfflineRank) -> tuple[FunctionResult, ...]:
    results = rank.compile(tuple(rank.build()))
    assert [result.reason for result in results if not result.ok] == []
    return results


@contextlib.contextmanager
def real_rank(cache: Path, *, rank: int) -> Iterator[Workload]:
    """The workload with real tensors, as a rank of a launch has it; collectives change nothing here."""
    with fake_world(rank=rank, world_size=8) as world:
        pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1])
        groups.declare_groups({"tp": pair, "world": world})
        context = RankContext(
            rank=rank,
            world_size=8,
            local_rank=rank,
            device_kind="cpu",
            device=torch.device("cpu"),
            groups={"tp": pair, "world": world},
        )
        with launch_scope.of(LaunchDefaults(cache_dir=str(cache))):
            yield small(context)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory in which rank 1 was built offline."""
    path = tmp_path_factory.mktemp("offline") / "cache"
    with torch.no_grad(), offline(spec_of(path)) as rank:
        compiled(rank)
    return path


def test_artifact_has_the_bytes_that_a_rank_of_a_launch_compiles(cache, tmp_path):
    with real_rank(tmp_path / "launched", rank=1) as workload:
        (call,) = workload.calls
        launched = call.function.compile(call.args, call.kwargs, reason="")
        (built,) = cache.rglob("compiled_module")
        assert launched.stored.path.read_bytes() == built.read_bytes()


@pytest.mark.parametrize("rank", [1, 6])
def test_rank_of_a_launch_finds_it_and_computes_what_eager_does(rank, cache):
    with real_rank(cache, rank=rank) as workload:
        (call,) = workload.calls
        found = call.function.find(call.args, call.kwargs)
        assert (found.stored is not None, found.own) == (True, rank == 1), found.reason
        assert torch.equal(call.function(*call.args), workload.model(*call.args))


def test_other_rank_adopts_it(cache):
    with offline(spec_of(cache, rank=4)) as rank:
        rank.build()
        (probe,) = rank.probe()
        assert (probe.state, probe.reason) == ("adoptable", "fits world8global_rank1")
        (adopted,) = rank.adopt({probe.function: probe.digest})
        assert (adopted.ok, adopted.outcome) == (True, "adopted")
        manifest = rank.manifest()
        assert [entry.path.split("/")[1] for entry in manifest.artifacts] == ["world8global_rank4"]
        assert manifest.environment == environment()


def test_function_that_asks_for_its_rank_is_bound_to_it(tmp_path):
    with offline(spec_of(tmp_path, arguments={"method": "by_rank"})) as rank:
        compiled(rank)
        assert rank.rank_bound() == ("Small.by_rank",)
    with offline(spec_of(tmp_path, rank=2, arguments={"method": "by_rank"})) as other:
        other.build()
        (probe,) = other.probe()
        assert (probe.state, "get_rank(): 1 -> 2" in probe.reason) == ("miss", True)


@pytest.mark.parametrize("entrypoint", ["asks_for_values", "asks_for_addresses"])
def test_model_that_needs_real_tensors_is_refused_with_the_line(entrypoint, tmp_path):
    with (
        offline(spec_of(tmp_path, entrypoint=entrypoint)) as rank,
        pytest.raises(NeedsValues, match="--real-tensors") as caught,
    ):
        rank.build()
    assert "offline_ranks.py" in caught.value.where
    assert f"in {entrypoint}" in caught.value.where


def test_tensor_whose_values_a_graph_would_hold_is_refused(tmp_path):
    with offline(spec_of(tmp_path, entrypoint="decomposes_with_a_table")) as rank:
        rank.build()
        (refused,) = rank.compile(("Small.forward",))
    assert not refused.ok
    assert "NeedsValues" in refused.reason
    assert "a decomposition of its configuration holds" in refused.reason
    with offline(spec_of(tmp_path, entrypoint="decomposes_with_a_table")) as rank:
        rank.build()
        with pytest.raises(NeedsValues, match="a decomposition of its configuration holds"):
            rank.probe()
    assert not list(tmp_path.rglob("compiled_module"))
