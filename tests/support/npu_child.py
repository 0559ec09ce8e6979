"""A process that runs cases of `npu_cases` under the emulator, and prints as JSON what it saw.

Usage: python -m tests.support.npu_child MODE CACHE_DIR [CASE ...]
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from pathlib import Path

from worker import npu_emulator


def main(mode: str, cache_dir: str, *names: str) -> None:
    npu_emulator.install()
    from tests.support.npu_cases import CASES, Bench

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
