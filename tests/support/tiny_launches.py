"""Launches of `tests.support.tiny_workload` on Ray: their configuration, and what to expect of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.stored import store_config
from warmrank.orchestrator.launch.report import Report

ENTRYPOINT = "tests.support.tiny_workload:workload"


def data_of(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "workload": {"entrypoint": ENTRYPOINT},
        "ranks": 2,
        "parallel": {"tp": 2},
        "cache_dir": str(tmp_path / "cache"),
        "store": store_config(tmp_path / "store"),
        **changes,
    }


def counts(report: Report) -> tuple[int, int, int]:
    return report.totals.num_compiled, report.totals.num_loaded, report.totals.num_adopted
