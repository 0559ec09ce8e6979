"""Accelerators that are there, open and visible, on made-up facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warmrank.orchestrator.doctor.devices import DeviceFile, Devices, Tool, check, cuda_visible_fault
from warmrank.orchestrator.doctor.findings import Finding

NPU = Devices(
    device="npu",
    files=tuple(DeviceFile(path=f"/dev/davinci{number}", usable=True) for number in range(8)),
    managers=(DeviceFile(path="/dev/davinci_manager", usable=True),),
    missing_managers=(),
    has_driver_libraries=True,
    visible=None,
    in_container=False,
    tool=None,
    num_usable=8,
    num_ranks=8,
)
CUDA = replace(
    NPU,
    device="cuda",
    files=(DeviceFile(path="/dev/nvidia0", usable=True), DeviceFile(path="/dev/nvidia1", usable=True)),
    tool=Tool(name="nvidia-smi"),
    num_usable=2,
    num_ranks=2,
)


def troubles(facts: Devices) -> dict[str, Finding]:
    return {finding.check: finding for finding in check(facts) if finding.level != "ok"}


@pytest.mark.parametrize("facts", [NPU, CUDA], ids=["npu", "cuda"])
def test_devices_that_can_be_used_are_fine(facts: Devices):
    assert troubles(facts) == {}


@pytest.mark.parametrize(("in_container", "remedy"), [(True, "--device"), (False, "install the Ascend")])
def test_node_without_devices_is_told_how_to_get_them(in_container: bool, remedy: str):
    found = troubles(replace(NPU, files=(), in_container=in_container))
    assert set(found) == {"devices.present"}
    assert remedy in found["devices.present"].remedy


def test_device_that_may_not_be_opened_is_an_error():
    closed = (*NPU.files[:7], DeviceFile(path="/dev/davinci7", usable=False))
    found = troubles(replace(NPU, files=closed))["devices.access"]
    assert "/dev/davinci7" in found.what
    assert "HwHiAiUser" in found.remedy


def test_missing_manager_is_an_error():
    found = troubles(replace(NPU, missing_managers=("/dev/hisi_hdc",), in_container=True))
    assert set(found) == {"devices.managers"}
    assert "/dev/hisi_hdc" in found["devices.managers"].what


def test_container_without_the_driver_s_libraries_is_told_what_to_mount():
    found = troubles(replace(NPU, has_driver_libraries=False, in_container=True))
    assert "-v /usr/local/Ascend/driver" in found["devices.driver"].remedy


@pytest.mark.parametrize("value", ["0,1, 2", "3,2", "8", "", "0-3"])
def test_list_that_cann_would_cut_short_is_an_error(value: str):
    assert troubles(replace(NPU, visible=value))["devices.visible"].level == "error"


@pytest.mark.parametrize("value", ["0", "0,1,2,3", "7"])
def test_list_of_npus_that_are_there_is_fine(value: str):
    assert troubles(replace(NPU, visible=value)) == {}


@pytest.mark.parametrize(("value", "is_fine"), [("1,0", True), ("2", False), ("0,x", False), ("", False)])
def test_list_of_gpus_is_compared_with_those_that_are_there(value: str, is_fine: bool):
    assert (cuda_visible_fault(value, 2) == "") is is_fine


def test_gpus_by_uuid_are_not_judged():
    assert troubles(replace(CUDA, visible="GPU-8932f937"))["devices.visible"].level == "note"


def test_driver_s_tool_that_gives_no_answer_is_an_error():
    found = troubles(replace(CUDA, tool=Tool(name="nvidia-smi", problem="status 9: no driver")))
    assert found["devices.tool"].actual == "status 9: no driver"


def test_missing_tool_is_a_note():
    assert troubles(replace(CUDA, tool=None))["devices.tool"].level == "note"


def test_devices_that_torch_cannot_use_are_an_error():
    found = troubles(replace(NPU, num_usable=0, device_error="RuntimeError: 507033"))["devices.usable"]
    assert found.actual == "RuntimeError: 507033"


def test_devices_are_not_counted_where_torch_does_not_import():
    assert troubles(replace(NPU, num_usable=None))["devices.usable"].level == "note"


def test_more_ranks_than_devices_are_an_error():
    assert troubles(replace(NPU, num_ranks=16))["devices.enough"].actual == "8"
