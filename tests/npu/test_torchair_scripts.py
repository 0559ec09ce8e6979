"""The scripts of `tests.support.seeds` on an emulated NPU, unchanged: cold, then warm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.script_runs import FUNCTIONS, UNKEPT, Runs
from tests.support.selected import selected

QUICK = ("input_meta", "programs")


def scripts(*names: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    asked = selected(request, "script")
    names = [name for name in (*FUNCTIONS, *UNKEPT) if name in asked]
    return Runs(tmp_path_factory.mktemp("scripts"), names, npu=True)


@pytest.mark.parametrize("script", scripts(*FUNCTIONS))
def test_second_run_loads_what_the_first_one_saved(script: str, runs: Runs) -> None:
    runs.check(script)


@pytest.mark.parametrize("script", scripts("input_meta"))
def test_the_log_names_no_private_files(script: str, runs: Runs) -> None:
    """Private directories of engine torchair: TorchAir logs its own cache's lines about them."""
    runs.check(script)
    assert "warmrank-torchair-" not in runs.printed(script)


@pytest.mark.parametrize("script", scripts(*UNKEPT))
def test_script_runs_end_to_end_and_keeps_nothing(script: str, runs: Runs) -> None:
    assert runs.first(script) == []
