"""Tensor, pipeline and data parallel together, in real processes: one compile a stage, whatever the sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

SIZES = {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "hidden": 32}


def launched(root: Path, *, tp: int, pp: int, dp: int, node: str, **changes: Any) -> Report:
    data = {
        "workload": {"entrypoint": "warmrank.examples.llama_stage:workload", "arguments": SIZES},
        "ranks": tp * pp * dp,
        "parallel": {"tp": tp, "pp": pp, "dp": dp},
        "cache_dir": str(root / node),
        "store": store_config(root / "store"),
        "ray": {"num_cpus": tp * pp * dp},
        **changes,
    }
    return launch(parse(data))


def test_each_stage_compiles_once_and_other_sizes_of_the_world_compile_nothing(tmp_path: Path) -> None:
    cold = launched(tmp_path, tp=2, pp=2, dp=2, node="first")
    assert (cold.totals.num_compiled, cold.totals.num_adopted) == (2, 6)
    leaders = [rank.rank for rank in cold.ranks for found in rank.functions if found.outcome == "compiled"]
    assert [rank // 2 % 2 for rank in leaders] == [0, 1]  # one in each stage

    smaller = launched(tmp_path, tp=2, pp=2, dp=1, node="second", no_compile=True)
    assert smaller.totals.num_compiled == 0

    again = launched(tmp_path, tp=2, pp=2, dp=2, node="third", no_compile=True)
    assert (again.totals.num_compiled, again.totals.num_loaded) == (0, 8)
    assert all(rank.verification is not None and rank.verification.ok for rank in again.ranks)
