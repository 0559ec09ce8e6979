"""For which machines an offline build can work here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launching import loaded_config
from warmrank.orchestrator.build.plan import BuildTarget, check_target, read_target, target_here
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


def test_machines_like_this_one_are_built_for_and_said_to_be(config):
    check_target(config, target_here(), real_tensors=False)
    assert "no --environment" in target_here().source


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


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_machines_without_an_accelerator_are_refused_for_one(device, tmp_path):
    target = BuildTarget(environment={**environment(), "accelerator": "none"}, source="machines like this")
    with pytest.raises(BadArgument, match="--environment"):
        check_target(loaded_config(tmp_path, device=device), target, real_tensors=False)


def test_real_tensors_are_for_the_cpu(tmp_path):
    config = loaded_config(tmp_path, device="npu")
    path = written(tmp_path / "there.json", accelerator="Ascend910B")
    with pytest.raises(BadArgument, match="only device cpu"):
        check(config, path, real_tensors=True)


def test_script_is_refused(tmp_path):
    config = loaded_config(tmp_path, workload={"script": "run.py"})
    with pytest.raises(BadArgument, match=r"workload\.entrypoint"):
        check_target(config, target_here(), real_tensors=False)


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
def test_file_that_is_no_environment_says_what_is_expected(
    change: Callable[[dict[str, str]], object], says: str, tmp_path: Path
):
    path = tmp_path / "there.json"
    path.write_text(json.dumps(change(environment())))
    with pytest.raises(BadArgument, match=says):
        read_target(path)


@pytest.mark.parametrize("text", [None, "{"])
def test_file_that_cannot_be_read_is_named(text, tmp_path):
    path = tmp_path / "there.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadArgument, match=str(path)):
        read_target(path)


def test_npu_is_not_built_for_without_torch_npu(tmp_path, monkeypatch):
    here = {**environment(), "torch_npu": "none"}
    monkeypatch.setattr("warmrank.orchestrator.build.plan.environment", lambda: here)
    config = loaded_config(tmp_path, device="npu")
    target = read_target(written(tmp_path / "there.json", torch_npu="2.13.0", accelerator="Ascend910B2"))
    with pytest.raises(BadArgument, match=r"torch_npu is not installed here.*build where torch_npu and CANN"):
        check_target(config, target, real_tensors=False)
