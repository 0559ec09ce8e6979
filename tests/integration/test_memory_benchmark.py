"""The memory benchmark in small: pools hold what it says, and every result was right."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.stored import REPOSITORY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("benchmark") / "figures.json"
    script = REPOSITORY / "benchmarks" / "memory.py"
    command = [sys.executable, str(script), "--small", "--lines", "one function", "--json", str(file)]
    result = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return {"printed": result.stdout, **json.loads(file.read_text())}


def lines(figures: dict[str, Any], **modes: bool) -> list[dict[str, Any]]:
    return [
        line
        for line in figures["lines"]
        if all(line["modes"][name] == value for name, value in {"rising": False, **modes}.items())
    ]


def test_every_gear_is_captured_once_after_one_compile(figures):
    assert {line["captures"] for line in figures["lines"]} == {figures["shape"]["gears"]}
    assert {line["recaptures"] for line in figures["lines"]} == {0}
    assert {outcome for line in figures["lines"] for outcome in line["outcomes"]} == {"loaded"}


def test_every_result_equals_that_of_eager(figures):
    assert max(line["largest_difference"] for line in figures["lines"]) < 1e-5


def test_gears_that_share_a_pool_take_what_the_largest_takes(figures):
    shared = lines(figures, two=True)
    assert len(shared) == 2
    assert all(line["num_pools"] == 1 and 1 <= line["ratio"] <= 1.1 for line in shared)


def test_gears_that_share_nothing_take_the_sum(figures):
    [cloned] = lines(figures, two=False, three=True)
    assert cloned["pool_bytes"] == sum(figures["alone"]["cloned"])
    assert cloned["num_pools"] == figures["shape"]["gears"]


def test_inputs_that_are_not_copied_take_no_memory_of_the_pool(figures):
    [copied], [not_copied] = lines(figures, two=True, three=True), lines(figures, two=True, three=False)
    assert not_copied["pool_bytes"] < copied["pool_bytes"]


def test_verdict_is_that_of_the_lines(figures):
    assert figures["met"]
    assert "with reuse at most 1.1 x the largest gear: met" in figures["printed"]
