"""The example's Llama, split over two processes, against the whole one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import PYTHONPATH

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_split_model_equals_the_whole_one(tmp_path: Path) -> None:
    script = ROOT / "tests" / "support" / "llama_rank.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "store"), str(rank), "2"],
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=400) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert all(out.startswith("heads=2 ") for out, _ in outputs)
