"""The NPUs of this machine: device files, models, what ``npu-smi`` says of them, and which a process may use.

The model is that of ``torch.npu.get_device_name()``: ``Ascend910B2`` (Atlas A2), ``Ascend910_9391`` (A3).
``npu-smi info -t board`` gives it in parts, which differ by generation::

    Atlas A2    Chip Type : Ascend        Chip Name : 910B4       -> Ascend910B4
    Atlas A3    Chip Name : Ascend910     NPU Name  : 9392        -> Ascend910_9392

Source of the rule: "How to get the SoC model", in the documents of MindStudio's msOpProf. In the table of
``npu-smi info`` a chip takes two lines; the second line's second number, on A3, counts the node's chips::

    | 0     910B4               | OK            | 88.2        30                0    / 0             |
    | 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ 32768         |

``ASCEND_RT_VISIBLE_DEVICES`` has numbers and commas, in rising order: CANN reads up to the first other sign
or the first number that is not there, in silence, and torch_npu finds no device at all where the order falls.
Here all of that is an error. A process counts its visible devices from 0, whatever their numbers.
(``ASCEND_VISIBLE_DEVICES`` is another variable, of the container runtime, and knows ranges.) Source: CANN's
reference of environment variables,
https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0028.html
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from warmrank.worker.ascend.versions import cann_of, driver_of, package_problems
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import ASCEND_DEVICE, AscendPlaces, ascend_places
from warmrank.worker.values import Value

_log = logging.getLogger(__name__)

_TIMEOUT_S = 20.0  # on a busy node with 16 chips it takes a few seconds
_HUAWEI = "0x19e5"
# Families by PCI device, as the log collector of Ascend's driver names them (PCIE_BDF_*).
_FAMILIES = {
    "0xd100": "Ascend310",
    "0xd500": "Ascend310P",
    "0xd801": "Ascend910",
    "0xd802": "Ascend910B",
    "0xd803": "Ascend910_93",
}
# Text, not patterns: they are compiled where there are NPUs, and not on every import.
_FIRST = r"\|\s*(\d+)\s+(\S.*?)\s*\|\s*(\S+)\s*\|"
_SECOND = r"\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*([0-9A-Fa-f]{4}:\S+)\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$"


class Chip(Value):
    """One chip, as ``npu-smi info`` lists it."""

    npu: int  # number of its NPU (a module; of Atlas A3 it holds two chips)
    chip: int  # number within the NPU
    name: str  # as the table gives it: ``910B4``, or ``Ascend910`` for every model of Atlas A3
    health: str  # ``OK``, or what else the tool says
    bus_id: str  # its place on the PCI bus

    def problem(self) -> str:
        """Its fault and the remedy; empty if it has none."""
        if self.health in ("OK", "Warning"):
            return ""
        return (
            f"NPU {self.npu} chip {self.chip} ({self.name}, {self.bus_id}) has health {self.health}; see "
            f"`npu-smi info -t health -i {self.npu}`, and leave it out of ASCEND_RT_VISIBLE_DEVICES"
        )


def device_numbers(places: AscendPlaces) -> tuple[int, ...]:
    """Numbers of the device files: chips that this process, or this container, may open."""
    try:
        names = [file.name for file in places.devices.iterdir() if file.name.startswith(ASCEND_DEVICE)]
    except OSError:
        return ()
    numbers = (name.removeprefix(ASCEND_DEVICE) for name in names)
    return tuple(sorted(int(number) for number in numbers if number.isascii() and number.isdecimal()))


def chips_of(places: AscendPlaces) -> tuple[tuple[Chip, ...], str]:
    """The chips, and what went wrong where the tool does not list any."""
    text, trouble = _ask(places.npu_smi, "info")
    chips = chips_in(text)
    if chips or trouble:
        return chips, trouble
    said = text.strip().partition("\n")[0] or "nothing"
    return (), (
        f"`{places.npu_smi} info` lists no chip; it says: {said}. Where it names DCMI, the driver is not "
        "loaded, or this container lacks /usr/local/dcmi and the driver's libraries"
    )


def chips_in(table: str) -> tuple[Chip, ...]:
    """The chips in what ``npu-smi info`` prints; the list of processes below holds none."""
    chips = []
    for upper, lower in pairwise(table.splitlines()):
        first, second = re.match(_FIRST, upper), re.match(_SECOND, lower)
        if first is None or second is None:
            continue
        chips.append(
            Chip(
                npu=int(first.group(1)),
                chip=int(second.group(1)),
                name=first.group(2),
                health=first.group(3),
                bus_id=second.group(3),
            )
        )
    return tuple(chips)


def soc_of(places: AscendPlaces) -> str:
    """Model of the NPUs, without number, place or count; several are joined by ``, ``.

    Empty without NPUs. Without the tool it is the family, of which PCI tells.
    """
    if not device_numbers(places):
        return ""
    chips, trouble = chips_of(places)
    first = {chip.name: chip for chip in reversed(chips)}
    wanted = (("info", "-t", "board", "-i", str(chip.npu), "-c", str(chip.chip)) for chip in first.values())
    models = {soc_in(_ask(places.npu_smi, *board)[0]) for board in wanted} - {""}
    if models:
        return ", ".join(sorted(models))
    found = sorted(_families(places)) or ["Ascend"]
    _log.warning(
        "the model of the NPUs is not known more closely than %s (%s); artifacts are not shared with nodes "
        "where `%s info` works", ", ".join(found), trouble or "no board names it", places.npu_smi
    )  # fmt: skip
    return ", ".join(f"{family} family" for family in found)


def soc_in(board: str) -> str:
    """The model in what ``npu-smi info -t board`` prints; empty where it names none."""
    found = re.findall(r"^\s*(Chip Type|Chip Name|NPU Name)\s*:\s*(\S+)\s*$", board, re.MULTILINE)
    fields = {field: value for field, value in found if value not in ("NA", "-")}
    name = fields.get("Chip Name", "")
    if not name:
        return ""
    if fields.get("NPU Name"):
        return f"{name}_{fields['NPU Name']}"
    return name if name.startswith("Ascend") else f"{fields.get('Chip Type', 'Ascend')}{name}"


@cache
def _ask(tool: str, *arguments: str) -> tuple[str, str]:
    """Output of the tool, and the error if it does not run; asked once in a process."""
    import subprocess  # takes 10 ms, which machines without NPUs need not spend

    try:
        done = subprocess.run(  # noqa: S603 - no shell; the words are ours
            [tool, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"`{tool}` does not answer within {_TIMEOUT_S:g} s; see `dmesg` for the driver's messages"
    except OSError as error:
        missing = error.strerror or error
        return "", f"`{tool}` does not run: {missing}. Mount it into the container, with /usr/local/dcmi"
    return done.stdout or done.stderr, ""


def _families(places: AscendPlaces) -> set[str]:
    """Families of the NPUs on the PCI bus."""
    found = set()
    for device in places.pci.glob("*/device"):
        family = _FAMILIES.get(_word(device))
        if family and _word(device.with_name("vendor")) == _HUAWEI:
            found.add(family)
    return found


def _word(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
_NONE = ("", "NoDevFiles")  # the latter is what Ray reads as none


def visible_devices(environ: Mapping[str, str], num_devices: int) -> tuple[int, ...]:
    """Numbers of the NPUs that a process with these variables may use, of all in the machine or container.

    Raises:
        DeviceUnavailable: the variable is not a list as CANN reads it, or names an NPU that is not there.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return tuple(range(num_devices))
    if text in _NONE:
        return ()
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        expected = "numbers and commas, without spaces and ranges"
        raise _refused(
            text, f"CANN would stop reading at the first other sign; expected {expected}, such as 0,1,2"
        )
    numbers = tuple(int(part) for part in text.split(","))
    if any(after <= before for before, after in pairwise(numbers)):
        raise _refused(text, "CANN takes numbers in rising order only, each once")
    missing = [number for number in numbers if number >= num_devices]
    if missing:
        there = (
            f"this machine has {num_devices} NPUs, numbered from 0" if num_devices else "there is no NPU here"
        )
        raise _refused(text, f"it names {', '.join(map(str, missing))}, but {there}")
    return numbers


def _refused(text: str, why: str) -> DeviceUnavailable:
    msg = f"{VARIABLE}={text}: {why}. Set it anew, or unset it to use every NPU."
    return DeviceUnavailable(msg, kind="npu", variable=VARIABLE, actual=text)


class Installation(Value):
    """Ascend's software and devices on this machine, for people and for checks."""

    cann: str  # release of CANN, such as ``8.5.0``; empty where there is none
    cann_detail: str  # what the fingerprint says of CANN: release, build, and packages of other versions
    home: str  # directory of CANN; empty where there is none
    nnal: str  # version of NNAL (ATB); empty where there is none
    driver: str  # version of the driver; empty where there is none
    soc: str  # model of the NPUs, such as ``Ascend910B2``; several are joined by ``, ``; empty without NPUs
    devices: tuple[int, ...]  # numbers N of the files ``/dev/davinci<N>``
    chips: tuple[Chip, ...]  # what ``npu-smi`` says of each chip; empty where it is missing or fails
    problems: tuple[str, ...]  # what is wrong or does not fit, each with its remedy


def installation() -> Installation:
    """Look at this machine; takes a second or two where there are NPUs, because ``npu-smi`` does."""
    places = ascend_places()
    cann = cann_of(places)
    devices = device_numbers(places)
    chips, trouble = chips_of(places) if devices else ((), "")
    return Installation(
        cann=cann.release,
        cann_detail=cann.text(),
        home=cann.home,
        nnal=cann.nnal,
        driver=driver_of(places),
        soc=soc_of(places),
        devices=devices,
        chips=chips,
        problems=(
            *package_problems(places),
            *((trouble,) if trouble else ()),
            *(chip.problem() for chip in chips if chip.problem()),
        ),
    )
