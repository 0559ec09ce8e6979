"""A process that runs cases of `npu_cases`, and prints as JSON what it saw.

Usage: python -m tests.support.npu_child emulated|npu MODE CACHE_DIR [CASE ...]
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from pathlib import Path

import torch

from tests import npu_emulator
from warmrank.worker.devices import backend_for


def main(device: str, mode: str, cache_dir: str, *names: str) -> None:
    if device == "emulated":
        npu_emulator.install()
    else:
        backend_for("npu")  # imports torch_npu
    from tests.support import npu_cases
    from tests.support.npu_cases import CASES, Bench

    if device != "emulated":
        npu_cases.DEVICE = torch.device("npu", 0)
    found = {}
    for name in names or CASES:
        bench = Bench(mode, str(Path(cache_dir) / name))
        try:
            CASES[name](bench)
        except Exception:  # noqa: BLE001 - told to the test
            bench.seen.wrong.append(traceback.format_exc(limit=-6))
        found[name] = dataclasses.asdict(bench.done())
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    main(*sys.argv[1:])
