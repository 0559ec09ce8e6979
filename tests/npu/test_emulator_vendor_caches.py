"""torchair's and npugraph_ex's own caches, whole: cold and warm in fresh processes, equal to eager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import npu_vendor

CASES = [case.__name__ for case in npu_vendor.CASES]


def run(vendor: str, folder: Path) -> dict[str, Any]:
    environ = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-m", "tests.support.npu_vendor", vendor, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def stored(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = folder.rglob("compiled_module")
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


class Rounds:
    """A cold process and a warm one."""

    def __init__(self, vendor: str, folder: Path) -> None:
        self.cold = run(vendor, folder)
        self.written = stored(folder)
        self.warm = run(vendor, folder)
        self.left = stored(folder)


@pytest.fixture(scope="module", params=["torchair", pytest.param("npugraph_ex", marks=pytest.mark.slow)])
def rounds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    return Rounds(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("case", CASES)
def test_compiled_graph_gives_what_eager_gives(rounds: Rounds, case: str) -> None:
    assert rounds.cold[case]["traced"] > 0
    assert all(rounds.cold[case]["same"])


@pytest.mark.parametrize("case", CASES)
def test_stored_graph_gives_what_eager_gives_without_a_trace(rounds: Rounds, case: str) -> None:
    assert rounds.warm[case]["traced"] == 0
    assert all(rounds.warm[case]["same"])


def test_warm_process_leaves_every_file_as_it_was(rounds: Rounds) -> None:
    assert len(rounds.written) >= len(CASES)
    assert rounds.left == rounds.written


def test_vendors_pass_makes_one_operator_of_two(rounds: Rounds) -> None:
    (written,) = (content for name, (_, content) in rounds.written.items() if name.startswith("fused/"))
    assert b"npu_add_rms_norm_dynamic_quant" in written
