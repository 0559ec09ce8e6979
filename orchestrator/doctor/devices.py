"""Checks on accelerators: are they there, may this user open them, which can be seen? Pure functions.

What ``ASCEND_RT_VISIBLE_DEVICES`` takes stands in `worker.ascend.visible`. ``CUDA_VISIBLE_DEVICES`` takes
UUIDs too, which are not compared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warmrank.orchestrator.doctor.findings import Finding, ok, unknown
from warmrank.orchestrator.text import count_text
from warmrank.worker.ascend import visible_devices
from warmrank.worker.errors import DeviceUnavailable

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
DRIVER_LIBRARIES = "/usr/local/Ascend/driver/lib64"

_DRIVERS = {"cuda": "NVIDIA driver", "npu": "Ascend driver"}
_TOOLS = {"cuda": "nvidia-smi", "npu": "npu-smi info"}
"""What people look with; what ``npu-smi`` says is among the findings on Ascend's software."""

_INTO_CONTAINER = {
    "cuda": "start the container with --gpus all (NVIDIA Container Toolkit)",
    "npu": "start the container by Ascend Docker Runtime, or with --device for each /dev/davinciN and for "
    "/dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc, and with -v /usr/local/Ascend/driver:"
    "/usr/local/Ascend/driver:ro",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A file below ``/dev``; ``usable`` says whether this user may read and write it."""

    path: str
    usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What the driver's tool said; ``problem`` is why it gave no answer, empty if it did."""

    name: str
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What a node shows of its accelerators.

    Attributes:
        device: device kind that the node is checked for; not ``cpu``.
        files: one for each accelerator, such as ``/dev/davinci0``.
        managers: files that every process needs besides, of those that are there.
        missing_managers: the paths of those that are not there.
        has_driver_libraries: the driver's libraries are there; always true on cuda, where torch loads them.
        visible: value of the variable in `VARIABLES`; None where it is not set.
        in_container: this process runs in a container.
        tool: what nvidia-smi said; None where there is none, and on npu.
        num_usable: devices that torch can use here; None where torch did not import.
        device_error: why torch can use none, in its words.
        num_ranks: ranks of the config that will run on this node; 0 where that is not known.
        emulated: NPUs are emulated, so that none needs to be there.
    """

    device: str
    files: tuple[DeviceFile, ...]
    managers: tuple[DeviceFile, ...]
    missing_managers: tuple[str, ...]
    has_driver_libraries: bool
    visible: str | None
    in_container: bool
    tool: Tool | None
    num_usable: int | None
    device_error: str = ""
    num_ranks: int = 0
    emulated: bool = False


def check(facts: Devices) -> Iterator[Finding]:
    """All findings on accelerators."""
    if facts.emulated:
        yield ok(
            "devices.emulated", "an emulated NPU stands in (WARMRANK_EMULATE_NPU=1): no device is looked for"
        )
        yield _usable(facts)
        return
    if not facts.files:
        yield _none(facts)
        return
    yield ok("devices.present", f"{len(facts.files)} of kind {facts.device}: {_names(facts.files)}")
    yield _access(facts)
    if facts.device == "npu":
        yield _managers(facts)
        yield _libraries(facts)
    if facts.device == "cuda":
        yield _tool(facts)
    yield _visible(facts)
    yield _usable(facts)
    yield from _enough(facts)


def _none(facts: Devices) -> Finding:
    pattern = {"cuda": "/dev/nvidia[0-9]*", "npu": "/dev/davinci[0-9]*"}[facts.device]
    driver = _DRIVERS[facts.device]
    outside = f"install the {driver} and look with `{_TOOLS[facts.device]}`"
    inside = f"{_INTO_CONTAINER[facts.device]}; if the host has none either, {outside} there"
    return Finding(
        check="devices.present",
        level="error",
        what=f"this node has no device of kind {facts.device}",
        expected=pattern,
        actual="no such file",
        remedy=inside if facts.in_container else outside,
    )


def _access(facts: Devices) -> Finding:
    closed = [file for file in (*facts.files, *facts.managers) if not file.usable]
    if not closed:
        return ok("devices.access", "this user may open them")
    group = "HwHiAiUser" if facts.device == "npu" else "video"
    return Finding(
        check="devices.access",
        level="error",
        what=f"this user may not open {_names(closed)}",
        expected="read and write permission",
        actual="permission denied",
        remedy=f"usermod -a -G {group} USER (the group of the files, see ls -l /dev), then log in anew; in a "
        "container, --group-add",
    )


def _managers(facts: Devices) -> Finding:
    if not facts.missing_managers:
        return ok("devices.managers", _names(facts.managers))
    return Finding(
        check="devices.managers",
        level="error",
        what=f"{', '.join(facts.missing_managers)} not there, without which no process can use an NPU",
        expected="/dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc",
        actual=_names(facts.managers) or "none of them",
        remedy=_INTO_CONTAINER["npu"]
        if facts.in_container
        else "install the Ascend driver anew, and restart",
    )


def _libraries(facts: Devices) -> Finding:
    if facts.has_driver_libraries:
        return ok("devices.driver", f"the driver's libraries are in {DRIVER_LIBRARIES}")
    return Finding(
        check="devices.driver",
        level="error",
        what="the driver's libraries are not there",
        expected=DRIVER_LIBRARIES,
        actual="no such directory",
        remedy=_INTO_CONTAINER["npu"] if facts.in_container else "install the Ascend driver",
    )


def _tool(facts: Devices) -> Finding:
    name = _TOOLS[facts.device]
    if facts.tool is None:
        return unknown("devices.tool", f"{name.partition(' ')[0]} is not on PATH")
    if not facts.tool.problem:
        return ok("devices.tool", f"{name} answers")
    return Finding(
        check="devices.tool",
        level="error",
        what=f"{name} gives no answer, so the driver may be stuck",
        expected="an answer",
        actual=facts.tool.problem,
        remedy=f"run {name} by hand; dmesg has the driver's words",
    )


def _visible(facts: Devices) -> Finding:
    name = VARIABLES[facts.device]
    if facts.visible is None:
        return ok("devices.visible", f"{name} is not set: all are visible; Ray sets it for each rank")
    if facts.device == "cuda" and re.search(r"[A-Za-z]", facts.visible):
        return unknown("devices.visible", f"{name}={facts.visible} names devices by UUID")
    fault = _visible_fault(facts, facts.visible)
    if not fault:
        return ok("devices.visible", f"{name}={facts.visible}")
    return Finding(
        check="devices.visible",
        level="error",
        what=f"{name} hides devices",
        expected=f"numbers out of 0-{len(facts.files) - 1} in rising order, with commas and no blanks",
        actual=fault,
        remedy=f"unset {name} before `ray start`, or correct it; Ray hands each rank one of these",
    )


def _visible_fault(facts: Devices, value: str) -> str:
    """What is wrong with a list of devices; empty if nothing is."""
    if facts.device == "npu":
        try:
            numbers = visible_devices({VARIABLES["npu"]: value}, len(facts.files))
        except DeviceUnavailable as error:
            return str(error)
        return "" if numbers else f"{value!r}: it names none"
    return cuda_visible_fault(value, len(facts.files))


def cuda_visible_fault(value: str, num_devices: int) -> str:
    """What is wrong with numbers in ``CUDA_VISIBLE_DEVICES``; CUDA reads up to the first unknown one."""
    if not value.strip():
        return f"{value!r}: it names none"
    for part in value.split(","):
        if not part.strip().isdecimal() or int(part) >= num_devices:
            return f"{value!r}: there is no device {part}, and nothing from there on is read"
    return ""


def _usable(facts: Devices) -> Finding:
    if facts.num_usable is None:
        return unknown("devices.usable", "torch does not import, see versions.import")
    if facts.num_usable:
        return ok("devices.usable", f"torch can use {facts.num_usable}")
    return Finding(
        check="devices.usable",
        level="error",
        what=f"torch can use no device of kind {facts.device}",
        expected="an emulated one" if facts.emulated else f"{len(facts.files)}, as there are files for them",
        actual=facts.device_error or "torch counts 0",
        remedy="mend the other findings on devices and versions first; then ask torch: "
        f"python -c 'import torch; torch.zeros(1, device=\"{facts.device}\")'",
    )


def _enough(facts: Devices) -> Iterator[Finding]:
    if not (facts.num_ranks and facts.num_usable):
        return
    if facts.num_usable >= facts.num_ranks:
        ranks = count_text(facts.num_ranks, "rank")
        yield ok("devices.enough", f"{facts.num_usable} for the {ranks} of the config")
        return
    yield Finding(
        check="devices.enough",
        level="error",
        what="the config has more ranks than this node has devices, and names no cluster",
        expected=f"{facts.num_ranks} devices, one for each rank",
        actual=str(facts.num_usable),
        remedy="lower ranks, or name a cluster with ray.address",
    )


def _names(files: Sequence[DeviceFile]) -> str:
    return ", ".join(file.path for file in files)
