"""The example for Ray Serve: the first replica compiles, a later one loads, all answer alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PYTHONPATH

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(480)]


def test_only_the_first_replica_compiles(tmp_path: Path) -> None:
    changes = {
        "cache_dir": tmp_path / "cache", "store.path": tmp_path / "store", "workload.arguments.layers": 1,
    }  # fmt: skip
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "warmrank.examples.serve_llama", "cluster_configs/llama-cpu.yaml", *settings,
         "--replicas", "1", "--add", "1", "--json", str(tmp_path / "answers.json")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads((tmp_path / "answers.json").read_text())
    told = [(answer["moment"], answer["way"], answer["compiled"]) for answer in answers]
    assert told == [("start", "launch", 2), ("added", "preseed", 0), ("start again", "preseed", 0)]
    assert len({json.dumps(answer["tokens"]) for answer in answers}) == 1
