"""What a launch with a Ray of its own finds before it starts Ray, held against what ranks say of the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.admission import admit
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import LaunchFailed
from warmrank.orchestrator.launch.before_ray import refuse_for_ranks
from warmrank.worker.errors import WorkloadError
from warmrank.worker.workload import build_workload


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("warmrank.orchestrator.gang.ray_session._is_initialized", lambda: False)


def config(tmp_path: Path, **changes: Any) -> Config:
    data: dict[str, Any] = {
        "workload": {"entrypoint": "json:dumps"},
        "ranks": 2,
        "parallel": {"dp": 2},
        "cache_dir": str(tmp_path / "cache"),
    }
    return parse({**data, **changes})


def refused(config: Config) -> LaunchFailed:
    with pytest.raises(LaunchFailed) as caught:
        refuse_for_ranks(config)
    return caught.value


@pytest.mark.parametrize("entrypoint", ["absent_of_all:f", "absent_of_all.inner:f", "json.absent:f"])
def test_missing_module_ends_as_it_would_on_the_ranks(tmp_path: Path, entrypoint: str):
    error = refused(config(tmp_path, workload={"entrypoint": entrypoint}))
    with pytest.raises(WorkloadError) as caught:
        build_workload(entrypoint, Any, {})  # type: ignore[arg-type]
    (cause,) = error.causes
    assert (error.stage, cause.ranks, cause.kind) == ("build", (0, 1), "WorkloadError")
    assert cause.message == str(caught.value)
    assert exit_code_of(error) == ExitCode.BAD_INPUT


@pytest.mark.parametrize("below", ["", "below"])
def test_unusable_cache_directory_ends_as_it_would_on_the_ranks(tmp_path: Path, below: str):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / below
    error = refused(config(tmp_path, cache_dir=str(place)))
    with pytest.raises(UnusableCache) as caught:
        admit(place, "off", ())
    (cause,) = error.causes
    assert (error.stage, cause.ranks, cause.kind) == ("start", (0, 1), "UnusableCache")
    assert cause.message == str(caught.value)
    assert exit_code_of(error) == ExitCode.FAULT


def test_what_is_there_is_not_refused(tmp_path: Path):
    refuse_for_ranks(config(tmp_path))
    refuse_for_ranks(config(tmp_path, workload={"script": "absent.py"}))  # the command looks for it


def test_nothing_is_refused_where_nodes_may_have_what_is_missing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    changes = {"workload": {"entrypoint": "absent_of_all:f"}, "cache_dir": str(tmp_path / "file")}
    refuse_for_ranks(config(tmp_path, ray={"address": "auto"}, **changes))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    refuse_for_ranks(config(tmp_path, **changes))
