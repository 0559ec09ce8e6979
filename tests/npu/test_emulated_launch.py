"""``warmrank launch`` on emulated NPUs: two ranks on a local Ray, cold and warm; a script of a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import npu_emulator
from tests.support.checkout import ended
from tests.support.launching import rank_spec, write_config
from warmrank.worker.rank.workload import run_script


def launch(directory: Path) -> dict[str, Any]:
    config = write_config(
        directory,
        workload={"entrypoint": "tests.support.tiny_workload:workload"},
        device="npu",
        ray={"num_cpus": 4},
    )
    environ = npu_emulator.environ() | {"RAY_OVERRIDE_RESOURCES": '{"NPU": 2}'}
    report = directory / "report.json"
    done = ended("-m", "warmrank", "launch", str(config), "--json", str(report), more=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("launch")
    return [launch(directory) for _ in range(2)]


def outcomes(report: dict[str, Any]) -> list[str]:
    return [function["outcome"] for rank in report["ranks"] for function in rank["functions"]]


@pytest.mark.timeout(480)
def test_first_launch_compiles_and_the_second_loads(reports: list[dict[str, Any]]) -> None:
    cold, warm = reports
    assert sorted(outcomes(cold)) == ["adopted", "adopted", "compiled", "compiled"]
    assert outcomes(warm) == ["loaded"] * 4


@pytest.mark.timeout(480)
def test_launch_is_verified(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert all(rank["verification"]["ok"] for rank in report["ranks"])


def test_script_of_a_rank_finds_the_emulated_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in npu_emulator.environ({})["PYTHONPATH"].split(":"):
        monkeypatch.syspath_prepend(place)
    out = tmp_path / "out"
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch_npu\n"
        "from pathlib import Path\n"
        "Path(sys.argv[1]).write_text(torch_npu.npu.get_device_name())\n"
    )
    run_script(rank_spec(tmp_path / "cache", device_kind="npu"), str(script), (str(out),))
    assert out.read_text().startswith("Ascend910")
