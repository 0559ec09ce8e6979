"""Families of transformers in both modes: compiled in one process, loaded in the next with other weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers comes with pip install 'warmrank[test]'")

ROOT = Path(__file__).parents[2]
FAMILIES = (
    "llama", "llama-generate", "mistral", "qwen2", "gemma2", "gemma3", "phi3", "gptneox", "opt", "falcon",
    "bloom", "gpt2", "qwen2_moe", "olmoe", "mamba", "mamba2", "bert", "roberta", "distilbert", "albert",
    "electra", "modernbert", "t5", "bart", "vit", "dinov2", "clip", "convnext", "swin",
)  # fmt: skip
# Attention of a model with a cache runs another kernel while traced; fused kernels round otherwise.
TOLERANCE = {"reduce-overhead": 2e-6, "max-autotune": 1e-4}


def run(cache: Path, mode: str, name: str, **environment: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.transformers_families", str(cache), mode, name],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", TOLERANCE)
@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_compiled_and_loaded_with_other_weights(name: str, mode: str, tmp_path: Path) -> None:
    for outcome, environment in (("compiled", {}), ("loaded", {"WARMRANK_NO_COMPILE": "1"})):
        found = run(tmp_path, mode, name, **environment)
        assert set(found["outcomes"]) == {outcome}
        assert found["far"] <= TOLERANCE[mode]
