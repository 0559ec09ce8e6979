"""Functional collectives inside captured graphs, between two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import PYTHONPATH

ROOT = Path(__file__).parents[2]


def test_replayed_collectives_equal_eager_ones(tmp_path: Path) -> None:
    script = ROOT / "tests" / "support" / "captured_rank.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(script), str(rank), str(tmp_path / "store")],
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=400) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
