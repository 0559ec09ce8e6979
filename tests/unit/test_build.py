"""Builds on a machine without accelerators."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command_line import run
from tests.support.fake_rank import FakeWorld
from tests.support.launching import loaded_config, rank_spec, write_config
from tests.support.offline_ranks import FakeOfflineLauncher, rank_of, small
from tests.support.stored import open_store
from warmrank.orchestrator.build.driver import BuildOptions, build
from warmrank.orchestrator.build.plan import built_ranks, check_target, read_target, target_here
from warmrank.orchestrator.build.ranks import OfflineLauncher
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import BadArgument, BuildFailed, CannotStart, LaunchFailed
from warmrank.worker.errors import NeedsValues
from warmrank.worker.keys.request import environment
from warmrank.worker.rank.manifests import unpacked
from warmrank.worker.rank.offline import OfflineRank
from warmrank.worker.rank.rank_worker import RankSpec
from warmrank.worker.results import FunctionResult
from warmrank.worker.settings import Target

pytestmark = pytest.mark.usefixtures("no_grad")


def test_witness_that_asks_for_something_else_fails_the_build(tmp_path):
    config = loaded_config(tmp_path, ranks=16, parallel={"tp": 2, "pp": 2, "dp": 4})
    world = FakeWorld(kind_of=lambda rank: rank == 15)
    launcher = FakeOfflineLauncher(built_ranks(config, every_rank=False), world)
    with pytest.raises(BuildFailed, match="rank 15 differs from rank 3") as caught:
        build(config, BuildOptions(target=target_here(), every_rank=False), launcher=launcher)
    assert "--every-rank" in str(caught.value)
    assert config.store is not None
    assert open_store(Path(config.store.tiers[0].path)).launches() == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--device", "npu"), "--environment"), (("--device", "moon"), "device"), (("--jobs", 0), "--jobs")],
)
def test_command_that_cannot_be_done_is_bad_input(arguments, says, tmp_path, monkeypatch):
    monkeypatch.setattr("warmrank.orchestrator.build.driver.OfflineLauncher", None)  # nothing is begun
    result = run("build", write_config(tmp_path), *arguments)
    assert result.exit_code == 2
    assert says in result.output


def config_of_module(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Config:
    """A config whose workload a module has that is written here."""
    (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(directory)
    return loaded_config(directory, workload={"entrypoint": f"{name}:workload"})


def test_rank_that_fails_leaves_its_traceback_to_the_error(tmp_path, monkeypatch, capfd):
    config = config_of_module(
        tmp_path, monkeypatch, "made_wrong", "def workload(context):\n    raise ValueError('no such width')\n"
    )
    with pytest.raises(LaunchFailed, match="no such width") as caught:
        build(config, BuildOptions(target=target_here(), num_jobs=1))
    assert "made_wrong.py" in caught.value.causes[0].traceback
    assert "Traceback" not in capfd.readouterr().err


def test_rank_that_ends_all_at_once_is_told_with_what_it_may_come_of(tmp_path, monkeypatch):
    config = config_of_module(
        tmp_path, monkeypatch, "made_to_end", "import os\ndef workload(context):\n    os._exit(0)\n"
    )
    with pytest.raises(LaunchFailed, match="was killed, crashed in native code") as caught:
        build(config, BuildOptions(target=target_here(), num_jobs=1))
    assert "--jobs" in caught.value.causes[0].remedy


def test_interrupt_while_ranks_are_imported_shows_no_traceback(tmp_path, monkeypatch, capfd):
    config = config_of_module(
        tmp_path, monkeypatch, "made_interrupted", "import os, signal\nos.killpg(0, signal.SIGINT)\n"
    )
    with pytest.raises(CannotStart):
        OfflineLauncher(config, (0,), num_jobs=1).start(1, timeout_s=120)
    assert capfd.readouterr().err == ""


def spec_of(cache: Path, *, rank: int = 1, entrypoint: str = "small", **changed: Any) -> RankSpec:
    return rank_spec(
        cache,
        rank=rank,
        world_size=8,
        groups={"world": range(8), "tp": range(rank - rank % 2, rank - rank % 2 + 2)},
        entrypoint=f"tests.support.offline_ranks:{entrypoint}",
        **changed,
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


@pytest.fixture(scope="module")
def offline_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory in which rank 1 was built offline."""
    path = tmp_path_factory.mktemp("offline") / "cache"
    with torch.no_grad(), offline(spec_of(path)) as rank:
        compiled(rank)
    return path


def test_artifact_has_the_bytes_that_a_rank_of_a_launch_compiles(offline_cache, tmp_path):
    with rank_of(1, 8, tmp_path / "launched", no_compile=False) as context:
        (call,) = small(context).calls
        launched = call.function.compile(call.args, call.kwargs, reason="")
        (built,) = offline_cache.rglob("compiled_module")
        assert launched.stored.path.read_bytes() == built.read_bytes()


def test_other_rank_adopts_it(offline_cache):
    with offline(spec_of(offline_cache, rank=4)) as rank:
        rank.build()
        (probe,) = rank.probe()
        assert (probe.state, probe.reason) == ("adoptable", "fits world8global_rank1")
        (adopted,) = rank.adopt({probe.function: probe.digest})
        assert (adopted.ok, adopted.outcome) == (True, "adopted")
        manifest = unpacked(rank.partition().manifest)
        assert [entry.path.split("/")[1] for entry in manifest.artifacts] == ["world8global_rank4"]
        assert manifest.environment == environment()


def test_function_that_asks_for_the_size_of_its_group_is_not_bound_to_its_rank(tmp_path):
    with offline(spec_of(tmp_path, arguments={"method": "gathered"})) as rank:
        compiled(rank)
        assert rank.rank_bound() == ()
    with offline(spec_of(tmp_path, rank=2, arguments={"method": "gathered"})) as other:
        other.build()
        assert [probe.state for probe in other.probe()] == ["adoptable"]


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


@pytest.mark.parametrize("name", ["python", "torch", "cuda", "torch_npu"])
def test_what_takes_part_in_a_trace_must_be_the_same(name, tmp_path, monkeypatch):
    if name == "torch_npu":  # counts where it is installed
        monkeypatch.setattr(
            "warmrank.orchestrator.build.plan.environment", lambda: {**environment(), "torch_npu": "2.13.0"}
        )
    path = tmp_path / "there.json"
    path.write_text(json.dumps({**environment(), name: "another 1.0"}))
    with pytest.raises(BadArgument, match=f"{name} here .*, there another 1.0"):
        check_target(loaded_config(tmp_path), read_target(path), real_tensors=False)
