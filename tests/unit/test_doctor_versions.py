"""Versions that fit each other, on made-up facts."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from warmrank.orchestrator.doctor.ascend import Ascend, check_streams
from warmrank.orchestrator.doctor.ascend import check as check_ascend
from warmrank.orchestrator.doctor.findings import Finding
from warmrank.orchestrator.doctor.versions import PYTHON, RANGES, Probe, Versions, check, release
from warmrank.worker.devices.streams import Captures

CPU = Versions(
    device="cpu",
    python="3.11.9",
    installed={"torch": "2.13.0+cpu", "ray": "2.60.0"},
    autoload=None,
    has_cann=False,
    nvidia_driver="",
    accelerators="none",
    probe=Probe(torch="2.13.0+cpu"),
)
CUDA = replace(
    CPU,
    device="cuda",
    nvidia_driver="580.95.05",
    accelerators="NVIDIA H100 80GB HBM3 sm_90",
    probe=Probe(torch="2.13.0", cuda="13.0", architectures=("sm_80", "sm_90"), num_devices=1),
)
NPU = replace(
    CPU,
    device="npu",
    installed={"torch": "2.12.0", "ray": "2.60.0", "torch_npu": "2.12.0"},
    has_cann=True,
    probe=Probe(torch="2.12.0", num_devices=8),
)
ASCEND = Ascend(
    cann="9.1.0",
    home="/usr/local/Ascend/cann",
    is_set_up=True,
    driver="25.5.2",
    firmware="7.8.0.6.201",
    soc="Ascend910B2",
    num_chips=8,
    problems=(),
    misfits=(),
)


def troubles(facts: Versions) -> dict[str, Finding]:
    return {finding.check: finding for finding in check(facts) if finding.level != "ok"}


@pytest.mark.parametrize("facts", [CPU, CUDA, NPU], ids=["cpu", "cuda", "npu"])
def test_what_fits_is_fine(facts: Versions):
    assert troubles(facts) == {}


def test_ranges_are_those_of_the_package():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    wanted = {
        name: (release(low), release(high))
        for name, low, high in re.findall(
            r"^(\w+)(?:\[\w+\])?>=([\d.]+),<([\d.]+)$", _plain(project), re.MULTILINE
        )
    }
    assert {name: wanted[name] for name in RANGES} == dict(RANGES)
    assert release(project["requires-python"].removeprefix(">=")) == PYTHON


def _plain(project: dict[str, dict[str, list[str]] | list[str]]) -> str:
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    return "\n".join([*project["dependencies"], *extras["npu"]])


def test_old_python_is_an_error():
    assert troubles(replace(CPU, python="3.10.4"))["versions.python"].actual == "3.10.4"


@pytest.mark.parametrize("version", ["2.10.0", "3.0.0"])
def test_torch_outside_the_range_is_an_error(version: str):
    found = troubles(replace(CPU, installed={**CPU.installed, "torch": version}))["versions.torch"]
    assert (found.level, found.expected) == ("error", "torch >= 2.11, < 3")


def test_facts_about_torch_are_findings_by_the_module_that_relies_on_them():
    facts = (("views", "A has b", ""), ("tracing", "C has d", "no d"), ("tracing", "E has f", ""))
    probe = Probe(torch="2.13.0", facts=facts)
    found = {finding.check: finding for finding in check(replace(CPU, probe=probe))}
    assert (found["compile.views"].level, found["compile.views"].what) == ("ok", "A has b")
    assert (found["compile.tracing"].level, found["compile.tracing"].actual) == ("error", "C has d: no d")


def test_torch_newer_than_the_tests_is_a_warning():
    found = troubles(replace(CPU, probe=Probe(torch="2.99.0", untested="2.11 to 2.15")))["versions.untested"]
    assert (found.level, found.expected) == ("warning", "torch 2.11 to 2.15")


def test_missing_ray_is_an_error():
    assert troubles(replace(CPU, installed={"torch": "2.13.0"}))["versions.ray"].actual == "not installed"


def test_missing_torch_npu_counts_on_npu_only():
    installed = {"torch": "2.13.0", "ray": "2.60.0"}
    assert "[npu]" in troubles(replace(NPU, installed=installed))["versions.torch_npu"].remedy
    assert troubles(replace(CPU, installed=installed)) == {}


@pytest.mark.parametrize(("device", "level"), [("cpu", "warning"), ("npu", "error")])
def test_torch_npu_without_cann_is_the_autoload_trap(device: str, level: str):
    found = troubles(replace(NPU, device=device, has_cann=False))["versions.autoload"]
    assert found.level == level
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in found.remedy


def test_autoload_that_is_switched_off_is_no_trap():
    assert troubles(replace(NPU, device="cpu", has_cann=False, autoload="0")) == {}


@pytest.mark.parametrize(("torch", "what"), [("", "torch does not"), ("2.12.0", "torch_npu does not")])
def test_failed_import_says_which_package_failed(torch: str, what: str):
    found = troubles(replace(NPU, probe=Probe(torch=torch, error="ImportError: libhccl.so")))
    assert found["versions.import"].what.startswith(what)
    assert found["versions.import"].actual == "ImportError: libhccl.so"


def test_torch_without_cuda_is_an_error_on_cuda():
    assert "built without CUDA" in troubles(replace(CUDA, probe=CPU.probe))["versions.cuda"].what


def test_driver_that_is_too_old_for_torch_is_an_error():
    found = troubles(replace(CUDA, nvidia_driver="550.54.15"))["versions.driver"]
    assert (found.expected, found.actual) == ("driver 580.65.6 or later", "550.54.15")


@pytest.mark.parametrize(("driver", "cuda"), [("", "13.0"), ("580.95.05", "99.0")])
def test_driver_that_cannot_be_judged_is_a_note(driver: str, cuda: str):
    probe = replace(CUDA.probe, cuda=cuda)
    found = troubles(replace(CUDA, nvidia_driver=driver, probe=probe))["versions.driver"]
    assert (found.level, found.what) == ("note", "not checked")


def test_gpu_without_kernels_is_an_error():
    found = troubles(replace(CUDA, accelerators="NVIDIA V100 sm_70"))["versions.architecture"]
    assert (found.level, "sm_70" in found.what) == ("error", True)


def test_later_minor_of_an_architecture_has_kernels():
    assert troubles(replace(CUDA, accelerators="NVIDIA A10 sm_86")) == {}


def test_missing_compiler_is_a_note_and_not_asked_on_npu():
    assert troubles(replace(CPU, compiler_problem="no g++"))["versions.compiler"].level == "note"
    assert troubles(replace(NPU, compiler_problem="no g++")) == {}


def test_release_reads_the_numbers_at_the_front():
    assert release("2.13.0+cpu") == (2, 13, 0)
    assert release("not a version") == ()


def ascend_troubles(facts: Ascend) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_ascend(facts) if finding.level != "ok"}


def test_whole_ascend_is_fine():
    assert ascend_troubles(ASCEND) == {}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"cann": "", "home": ""}, "ascend.cann", "error"),
        ({"driver": ""}, "ascend.driver", "error"),
        ({"firmware": ""}, "ascend.firmware", "note"),
        ({"is_set_up": False}, "ascend.environment", "warning"),
        ({"problems": ("NPU 3 is not well; leave it out",)}, "ascend.problems", "warning"),
        ({"misfits": ("CANN 8.5.0 is not for it: install 9.1",)}, "ascend.fit", "warning"),
    ],
)
def test_each_lack_of_ascend_is_named(change: dict[str, object], name: str, level: str):
    found = ascend_troubles(replace(ASCEND, **change))  # type: ignore[arg-type]
    assert {check: finding.level for check, finding in found.items()} == {name: level}


def test_streams_of_a_launch_that_fit_are_fine():
    captures = (Captures(name="Llama.decode", num_graphs=16, roles=frozenset({"tp"})),)
    assert check_streams("Ascend910B2", captures, "").level == "ok"


def test_streams_beyond_the_device_are_a_warning_with_what_to_change():
    captures = (Captures(name="Llama.decode", num_graphs=900, roles=frozenset({"tp"})),)
    found = check_streams("Ascend910B2", captures, "")
    assert found.level == "warning"
    assert "207008" in found.what


def test_streams_without_a_capture_plan_are_not_judged():
    assert check_streams("", (), "").level == "note"
