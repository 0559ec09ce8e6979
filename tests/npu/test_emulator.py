"""The emulated NPU as users and vendors' packages see it; switches; the autoload trap; launches on it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import npu_emulator
from tests.contract import test_device_backend as contract
from tests.contract.test_device_backend import backend, device  # noqa: F401 - its fixtures
from tests.support.checkout import ended
from tests.support.launching import rank_spec, write_config
from warmrank.worker.ascend import installation
from warmrank.worker.rank.workload import run_script
from warmrank.worker.runtime.ambient import differences, encode, snapshot

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def npu() -> Any:
    return torch.get_device_module("npu")


def test_device_module_is_the_real_one(npu: Any) -> None:
    import torch_npu

    assert npu is torch_npu.npu
    assert Path(npu.__file__).parts[-3:] == ("torch_npu", "npu", "__init__.py")
    assert npu.is_available()
    assert npu.device_count() == 1
    assert npu.get_device_name().startswith("Ascend910")
    assert not torch.is_autocast_enabled("npu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="npu"),
        lambda: torch.ones(2, device="npu:0"),
        lambda: torch.tensor([1.0, 2.0], device="npu"),
        lambda: torch.arange(2, device=torch.device("npu")),
        lambda: torch.randn(2, device="npu"),
        lambda: torch.zeros(2).to("npu"),
        lambda: torch.zeros(2).npu(),  # type: ignore[attr-defined]
        lambda: torch.nn.Linear(2, 2).to("npu").weight,
        lambda: torch.nn.Linear(2, 2, device="npu").weight,
    ],
    ids=["empty", "ones", "tensor", "arange", "randn", "to", "npu", "module", "factory"],
)
def test_tensor_on_the_device_lies_on_the_cpu(make: Any) -> None:
    made = make()
    assert made.device == torch.device("cpu")
    assert made.is_npu


def test_process_groups_of_the_devices_backend_work(tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("hccl", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [1.0, 1.0]
        assert dist.get_backend() == "hccl"
    finally:
        dist.destroy_process_group()


def test_operator_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="npu::npu_fast_gelu"):
        torch.ops.npu.npu_fast_gelu(torch.ones(2))


def test_process_imports_the_emulated_device_and_no_tracer_with_it() -> None:
    source = (
        "import sys, torch, torch_npu, torch_npu.npu\n"
        "names = ('torch._dynamo', 'torch._inductor', 'sympy', 'torch_npu.dynamo.torchair')\n"
        "print(torch.npu.is_available(), [name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], env=npu_emulator.environ(), capture_output=True, text=True,
        check=False, timeout=400,
    )  # fmt: skip
    assert done.stdout == "True []\n", done.stderr


# The contract of device backends, on the real ``torch.npu``; its parameters are replaced.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture
def kind() -> str:
    """Instead of the suite's parameters."""
    return "npu"


@pytest.fixture(autouse=True)
def options_as_before(npu: Any) -> Iterator[None]:
    """An option that nobody set cannot be unset by torch_npu's public names."""
    options = importlib.import_module("torch_npu")._C._npu_setOption.__self__
    before = dict(options)
    yield
    options.clear()
    options.update(before)


CHANGES = {
    "npu hf32 matmul: False -> True": lambda npu, on: setattr(npu.matmul, "allow_hf32", on),
    "npu hf32 convolution: True -> False": lambda npu, on: setattr(npu.conv, "allow_hf32", not on),
    "npu internal format: False -> True": lambda npu, on: setattr(npu.config, "allow_internal_format", on),
    "npu jit compile: disable -> enable": lambda npu, on: npu.set_compile_mode(jit_compile=on),
    "npu compatible implementation: False -> True": lambda npu, on: npu.use_compatible_impl(on),
}


@pytest.mark.parametrize("expected", CHANGES)
def test_public_switch_of_torch_npu_is_a_condition(npu: Any, expected: str) -> None:
    CHANGES[expected](npu, False)
    traced = encode(snapshot("npu"))
    CHANGES[expected](npu, True)
    try:
        assert differences(traced, snapshot("npu")) == (expected,)
    finally:
        CHANGES[expected](npu, False)


def test_deterministic_level_of_torch_npu_is_a_condition(npu: Any) -> None:
    traced = encode(snapshot("npu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch_npu's advice on using one of the two switches
        npu.set_deterministic_level(2)
        try:
            found = differences(traced, snapshot("npu"))
            assert int(encode(snapshot("npu"))["npu deterministic level"]) == npu._get_deterministic_level()
        finally:
            npu.set_deterministic_level(0)
    assert "npu deterministic level: 0 -> 2" in found
    assert differences(traced, snapshot("npu")) == ()


def test_defaults_of_torch_npu_are_read_as_it_reads_them(npu: Any) -> None:
    state = encode(snapshot("npu"))
    assert state["npu hf32 matmul"] == str(npu.matmul.allow_hf32)
    assert state["npu hf32 convolution"] == str(npu.conv.allow_hf32)


VARIABLES = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "RAY_ADDRESS")


def findings(**variables: str) -> dict[str, dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = ("-m", "warmrank", "doctor", "--device", "npu", "--json")
    done = ended(*command, environ=environ, more=variables)
    assert done.returncode in {0, 1}, done.stderr[-4000:]
    (node,) = json.loads(done.stdout)["nodes"]
    return {finding["check"]: finding for finding in node["findings"]}


@pytest.mark.skipif(bool(installation().cann), reason="CANN is installed here, so there is no trap")
def test_plain_import_of_torch_fails_and_the_doctor_says_why() -> None:
    found = findings(TORCH_DEVICE_BACKEND_AUTOLOAD="1")  # which `make` switches off for this environment
    assert found["versions.torch_npu"]["level"] == "ok"
    assert found["ascend.cann"]["level"] == "error"
    assert found["versions.import"]["level"] == "error"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in found["versions.import"]["remedy"]


# Launches.


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


def test_first_launch_compiles_and_the_second_loads(reports: list[dict[str, Any]]) -> None:
    cold, warm = reports
    assert sorted(outcomes(cold)) == ["adopted", "adopted", "compiled", "compiled"]
    assert outcomes(warm) == ["loaded"] * 4


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
