"""For which machines an offline build can work here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launching import loaded_config
from warmrank.orchestrator.build.plan import check_target, read_target
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.keys.environment import environment


def written(path: Path, **changed: str) -> Path:
    path.write_text(json.dumps({**environment(), **changed}))
    return path


def check(config: Config, path: Path, *, real_tensors: bool = False) -> None:
    check_target(config, read_target(path), real_tensors=real_tensors)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return loaded_config(tmp_path)


def test_driver_devices_and_instructions_may_be_others(config, tmp_path):
    path = written(tmp_path / "there.json", driver="ascend 25", accelerator="Ascend910B", cpu="arm64")
    check(config, path)
    assert read_target(path).environment["driver"] == "ascend 25"


@pytest.mark.parametrize("name", ["python", "torch", "cuda"])
def test_what_takes_part_in_a_trace_must_be_the_same(name, config, tmp_path):
    with pytest.raises(BadArgument, match=f"{name} here .*, there another 1.0"):
        check(config, written(tmp_path / "there.json", **{name: "another 1.0"}))


def test_other_torch_npu_than_the_installed_one_is_refused(config, tmp_path, monkeypatch):
    here = {**environment(), "torch_npu": "2.13.0"}
    monkeypatch.setattr("warmrank.orchestrator.build.plan.environment", lambda: here)
    path = written(tmp_path / "there.json", torch_npu="2.12.0")
    with pytest.raises(BadArgument, match=r"torch_npu here 2\.13\.0, there 2\.12\.0"):
        check(config, path)


def without_torch(data: dict[str, str]) -> object:
    return {name: value for name, value in data.items() if name != "torch"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_torch, "components torch are missing"),
        (lambda data: {**data, "moon": "full"}, "components moon"),
        (lambda data: [*data], "JSON object of strings"),
        (lambda data: {**data, "torch": 2}, "JSON object of strings"),
    ],
    ids=["a component is missing", "a component is unknown", "a list", "a number"],
)
def test_file_that_is_no_environment_says_what_is_expected(change, says, tmp_path):
    path = tmp_path / "there.json"
    path.write_text(json.dumps(change(environment())))
    with pytest.raises(BadArgument, match=says):
        read_target(path)
