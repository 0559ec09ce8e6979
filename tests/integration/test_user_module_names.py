"""Modules of a user that are named like our folders: neither side takes the other's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.launching import counts, data_of
from warmrank.orchestrator.launch.report import from_json

NAMES = ("worker", "orchestrator", "cache_store", "examples", "cluster_configs", "utils", "tests")

WORKER = """
import torch
from warmrank import Call, Workload
from warmrank.inference import cache_compile
import {names}

assert all(module.OWNER == "user" for module in ({names},))


class Model(torch.nn.Module):
    def forward(self, x):
        for name in {{"a", "b", "c", "d", "e"}}:  # in one order in every launch
            x = x * len(name) + 0
        return x * utils.SCALE


def workload(context):
    model = Model()
    return Workload(model=model, calls=(Call(function=cache_compile(model.forward), args=(torch.ones(2),)),))


if __name__ == "__main__":
    print(cache_compile(Model().forward)(torch.ones(2)).tolist())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a module of each name; `worker` is the model's and has the entrypoint."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text('OWNER = "user"\nSCALE = 3\n')
    others = ", ".join(name for name in NAMES if name != "worker")
    (tmp_path / "worker.py").write_text(WORKER.format(names=others))
    return tmp_path


def run(project: Path, *command: str) -> str:
    """Run Python in the project, which knows of nothing but what is installed."""
    done = subprocess.run(
        [sys.executable, *command], cwd=project, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_script_beside_modules_of_those_names_runs(project: Path):
    assert run(project, "worker.py").splitlines()[-1] == "[3.0, 3.0]"


@pytest.mark.slow
@pytest.mark.ray
def test_launch_beside_modules_of_those_names_compiles_and_loads(project: Path):
    data: dict[str, Any] = data_of(project, workload={"entrypoint": "worker:workload"})
    (project / "tiny.yaml").write_text(yaml.safe_dump(data))
    launch = ("-m", "warmrank", "launch", "tiny.yaml", "--json", "-")
    first = from_json(run(project, *launch))
    second = from_json(run(project, *launch, "--no-compile"))
    assert counts(first)[0] == 1
    assert counts(second)[0] == 0
