"""The emulated NPU as users and vendors' packages see it; switches; the autoload trap; launches on it."""

from __future__ import annotations

import importlib
import json
import os
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
from tests.support.launching import write_config
from warmrank.worker.ascend import installation
from warmrank.worker.torch_private.warm import ambient, ambient_differences, portable_ambient

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
    traced = portable_ambient("npu")
    CHANGES[expected](npu, True)
    try:
        assert ambient_differences(traced, ambient("npu")) == (expected,)
    finally:
        CHANGES[expected](npu, False)


def test_deterministic_level_of_torch_npu_is_a_condition(npu: Any) -> None:
    traced = portable_ambient("npu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch_npu's advice on using one of the two switches
        npu.set_deterministic_level(2)
        try:
            found = ambient_differences(traced, ambient("npu"))
            assert int(portable_ambient("npu")["npu deterministic level"]) == npu._get_deterministic_level()
        finally:
            npu.set_deterministic_level(0)
    assert "npu deterministic level: 0 -> 2" in found
    assert ambient_differences(traced, ambient("npu")) == ()


def test_capture_sends_nothing_to_other_ranks_which_need_not_capture_at_that_call(npu: Any) -> None:
    collectives, graph, x = torch.ops._c10d_functional, npu.NPUGraph(), torch.ones(2, 3)
    with npu.graph(graph):
        summed = collectives.wait_tensor(collectives.all_reduce(x, "sum", "no such group"))
        gathered = collectives.wait_tensor(collectives.all_gather_into_tensor(x, 2, "no such group"))
    assert (summed.shape, gathered.shape) == ((2, 3), (4, 3))
    with pytest.raises(RuntimeError, match="no such group"):
        graph.replay()


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
