"""Runs of `npu_cases` in processes of their own, on an emulated or a real NPU, and what they must give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.checkout import printed_by

MODES = ("reduce-overhead", "npugraph_ex")
# How many graphs TorchAir holds at the end, per cached function of the case.
CAPTURES = {
    "dynamic_shapes": [3],
    "static_shapes": [2],
    "capture_limit": [0],
    "dataclass_arguments": [2],
    "recompile": [2],
    "nested_results": [3],
    "custom_pools": [1, 1],
    "two_models": [1, 1],
    "gears": [3],
    "eager": [0],
}

Seen = dict[tuple[str, str], dict[str, Any]]
"""What was seen of each case, by mode and ``cold`` or ``warm``."""


def run(device: str, mode: str, cache_dir: Path, *cases: str) -> dict[str, Any]:
    """What was seen of each case in one new process; ``device`` is ``emulated`` or ``npu``."""
    printed = printed_by("tests.support.npu_child", device, mode, str(cache_dir), *cases)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def cold_and_warm(device: str, directory: Path) -> Seen:
    """All cases in all modes, each compiled in one process and loaded in the next."""
    return {
        (mode, temperature): run(device, mode, directory / mode)
        for mode in MODES
        for temperature in ("cold", "warm")
    }
