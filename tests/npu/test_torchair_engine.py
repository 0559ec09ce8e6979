"""What TorchAir's documents describe, through engine torchair: each case cold, then warm in a new process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.npu_cases import CASES

ROOT = Path(__file__).parents[2]
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


def run(mode: str, cache_dir: Path, *cases: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.npu_child", mode, str(cache_dir), *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for mode in MODES:
        cache_dir = tmp_path_factory.mktemp(mode)
        for run_name in ("cold", "warm"):
            found[mode, run_name] = run(mode, cache_dir)
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", ["cold", "warm"])
@pytest.mark.parametrize("mode", MODES)
def test_case_equals_eager(
    seen: dict[tuple[str, str], dict[str, Any]], mode: str, temperature: str, case: str
) -> None:
    found = seen[mode, temperature][case]
    assert not found["wrong"], "\n".join(found["wrong"])
    assert found["captures"] == CAPTURES.get(case, [1])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_warm_process_compiles_nothing(
    seen: dict[tuple[str, str], dict[str, Any]], mode: str, case: str
) -> None:
    cold, warm = (seen[mode, temperature][case]["outcomes"] for temperature in ("cold", "warm"))
    assert cold
    assert "compiled" in cold
    assert warm == ["loaded"] * len(cold)


def test_function_over_the_limit_of_captures_runs_eagerly(
    seen: dict[tuple[str, str], dict[str, Any]],
) -> None:
    for found in seen.values():
        assert found["capture_limit"]["notes"] == {"eager": 3}


def test_equal_compiles_write_equal_bytes(tmp_path: Path) -> None:
    """However many graphs each process compiled before."""
    run("npugraph_ex", tmp_path / "one", "parameters", "mutated_inputs", "two_models")
    run("npugraph_ex", tmp_path / "two", "dynamic_shapes", "two_models", "mutated_inputs", "parameters")
    for case in ("parameters", "mutated_inputs", "two_models"):
        one, two = (
            [path.read_bytes() for path in sorted((tmp_path / name / case).rglob("compiled_module"))]
            for name in ("one", "two")
        )
        assert one
        assert one == two
