"""Ascend on this machine: CANN and the driver, the NPUs' models, and which of them a process may use.

Versions of CANN (8.5 and later), NNAL and the driver are read from the files that their installers leave, all
of them, because packages can be upgraded one by one. Below ``cann-<version>``::

    <arch>-linux/ascend_toolkit_install.info, ascend_ops_install.info   version=9.0.0, innerversion=...
    share/info/<package>/version.info                                   Version=9.0.0

The model of an NPU is that of ``torch.npu.get_device_name()``: ``Ascend910B2`` (Atlas A2), ``Ascend910_9391``
(A3). ``npu-smi info -t board`` gives it in parts, which differ by generation (source: "How to get the SoC
model", in the documents of MindStudio's msOpProf)::

    Atlas A2    Chip Type : Ascend        Chip Name : 910B4       -> Ascend910B4
    Atlas A3    Chip Name : Ascend910     NPU Name  : 9392        -> Ascend910_9392

In the table of ``npu-smi info`` a chip takes two lines; the second one's second number, on A3, counts chips::

    | 0     910B4               | OK            | 88.2        30                0    / 0             |
    | 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ 32768         |

``ASCEND_RT_VISIBLE_DEVICES`` has numbers and commas, in rising order: CANN reads up to the first other sign
or the first number that is not there, in silence, and torch_npu finds no device at all where the order falls.
Here all of that is an error. A process counts its visible devices from 0, whatever their numbers. Source:
https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0028.html

Which releases of torch, torch_npu and CANN belong together is data, as Ascend documents it (2026-11):
COMPATIBILITY.md of https://gitcode.com/Ascend/pytorch, and ``Requires-Dist`` of torch_npu's packages. What is
in no table is not judged. CANN and the driver list each other's builds.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from itertools import pairwise
from pathlib import Path

from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import ASCEND_DEVICE, AscendPlaces, ascend_places
from warmrank.worker.values import Value

_log = logging.getLogger(__name__)

# Text, not patterns: they are compiled where they are needed, and not on every import.
_LINE = r"(?m)^[ \t]*([A-Za-z][\w -]*?)[ \t]*[=:][ \t]*(.+?)[ \t]*$"
_INSTALLED = ("toolkit", "nnae", "nnrt")  # packages that bring a whole CANN; the first that is there names it
_LINEAGE = r"V\d+R\d+C\d+"  # of a build such as V100R001C21SPC001B238


class Cann(Value):
    """One installation of CANN."""

    release: str = ""  # such as ``8.5.0`` or ``8.3.RC1``
    build: str = ""  # such as ``V100R001C21SPC001B238``; empty where no file names it
    packages: Mapping[str, str] = field(default_factory=dict)  # package -> its own version
    nnal: str = ""  # version of NNAL, which is installed beside it
    home: str = ""  # its directory; in no fingerprint

    def text(self) -> str:
        """Text that is equal for installations that make the same kernels; empty without CANN."""
        own = {name: version for name, version in self.packages.items() if version != self.release}
        versions = sorted(set(own.values()))
        alike = len(own) == len(self.packages) and len(versions) == 1  # all carry one build number
        parts = versions if alike else [f"{name} {own[name]}" for name in sorted(own)]
        nnal = [f"nnal {self.nnal}"] if self.nnal else []
        return " ".join(part for part in (self.release, self.build, *parts, *nnal) if part)


def cann_of(places: AscendPlaces) -> Cann:
    """The CANN of this machine; all fields are empty where there is none."""
    for home in filter(Path.is_dir, places.cann):
        packages = _packages(home)
        release, build = _release(home)
        if release or packages:
            return Cann(
                release=release or packages.get("runtime", "") or min(packages.values()),
                build=build,
                packages=packages,
                nnal=next(filter(None, map(_own_version, map(_fields, places.nnal))), ""),
                home=str(home),
            )
    return Cann()


def driver_of(places: AscendPlaces) -> str:
    """Version of the driver; empty where there is none."""
    return _own_version(_driver_info(places))


def package_problems(places: AscendPlaces) -> tuple[str, ...]:
    """Mismatches by the packages' own lists, each with its remedy; on the rest they are silent."""
    cann, driver = cann_of(places), _driver_info(places)
    if not cann.release and len(places.cann) == 1:
        msg = (
            f"{places.cann[0]}, which ASCEND_HOME_PATH or ASCEND_TOOLKIT_HOME names, holds no CANN: source "
            "set_env.sh of the CANN that is installed"
        )
        return (msg,)
    own, line = (re.match(_LINEAGE, build) for build in (driver.get("Innerversion", ""), cann.build))
    listed = driver.get("compatible_version", "")
    if not listed or own is None or line is None or own.group() == line.group():
        return ()
    infos = Path(cann.home).glob("*-linux/ascend_*_install.info")
    others = [_fields(file).get("compatible_version", "") for file in infos]
    if f"[{line.group()}]" in listed or any(f"[{own.group()}]" in text for text in others):
        return ()
    msg = (
        f"CANN {cann.release} ({cann.build}) and driver {_own_version(driver)} "
        f"({driver.get('Innerversion')}) do not list each other as compatible: install a driver that CANN's "
        "release notes name"
    )
    return (msg,)


def _release(home: Path) -> tuple[str, str]:
    """Release and build of the package that brought this CANN."""
    for package in _INSTALLED:
        for file in sorted(home.glob(f"*-linux/ascend_{package}_install.info")):
            fields = _fields(file)
            if fields.get("version"):
                return fields["version"], fields.get("innerversion", "")
    return "", ""


def _packages(home: Path) -> dict[str, str]:
    """The version of each package of a CANN."""
    found = {file.parent.name: _own_version(_fields(file)) for file in home.glob("share/info/*/version.info")}
    for file in sorted(home.glob("*-linux/ascend_*ops_install.info")):
        found["ops"] = _fields(file).get("version", "")
    return {name: version for name, version in found.items() if version}


def _driver_info(places: AscendPlaces) -> dict[str, str]:
    """The fields of the driver's ``version.info``."""
    root = _fields(places.install_info).get("Driver_Install_Path_Param")
    return _fields((Path(root) if root else places.ascend) / "driver" / "version.info")


def _own_version(fields: Mapping[str, str]) -> str:
    """The release that users know; beside it ``Version`` may be a component's."""
    names = ("package_version", "Ascend-cann-atb Version", "Ascend-cann-atb", "Version")
    return next((fields[name] for name in names if fields.get(name)), "")


def _fields(file: Path) -> dict[str, str]:
    """``name=value`` or ``name : value`` lines of a file; none where it cannot be read."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(_LINE, text))


# Releases of torch_npu -> the series of CANN that they are built for and tested with.
_CANN_OF = dict.fromkeys(("2.11.0", "2.11.0.post2", "2.12.0", "2.12.0.post2"), "9.1")


def fit(torch: str, torch_npu: str, cann: str) -> tuple[str, ...]:
    """Versions that do not belong together, each with its remedy; empty if none is known to be wrong.

    Versions such as ``2.12.0+cpu``, ``2.12.0.post2`` and ``9.1.RC1``. Empty ones are not judged: whether
    something is missing is another question.
    """
    problems = []
    made_for, found = (re.match(r"\d+(\.\d+){1,2}", version) for version in (torch_npu, torch))
    if made_for and found and made_for.group() != found.group():
        problems.append(
            f"torch_npu {torch_npu} is made for torch {made_for.group()}, and torch {torch} is installed: "
            f"install torch_npu=={found.group()}.*, or that torch"
        )
    wanted, series = _CANN_OF.get(torch_npu.partition("+")[0], ""), re.match(r"\d+\.\d+", cann)
    if wanted and series and wanted != series.group():
        problems.append(
            f"torch_npu {torch_npu} is made for CANN {wanted}, and CANN {cann} is installed: "
            f"install CANN {wanted}"
        )
    return tuple(problems)


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
_FIRST = r"\|\s*(\d+)\s+(\S.*?)\s*\|\s*\S+\s*\|"
_SECOND = r"\|\s*(\d+)(?:\s+\d+)?\s*\|\s*[0-9A-Fa-f]{4}:\S+\s*\|.*?\d+\s*/\s*\d+\s*\|\s*$"


def device_numbers(places: AscendPlaces) -> tuple[int, ...]:
    """Numbers of the device files: chips that this process, or this container, may open."""
    try:
        names = [file.name for file in places.devices.iterdir() if file.name.startswith(ASCEND_DEVICE)]
    except OSError:
        return ()
    numbers = (name.removeprefix(ASCEND_DEVICE) for name in names)
    return tuple(sorted(int(number) for number in numbers if number.isascii() and number.isdecimal()))


def _chips(places: AscendPlaces) -> tuple[dict[str, tuple[str, str]], str]:
    """NPU and number in it of the first chip of each name; and what went wrong where the tool lists none."""
    text, trouble = _ask(places.npu_smi, "info")
    found: dict[str, tuple[str, str]] = {}
    for upper, lower in pairwise(text.splitlines()):  # the list of processes below holds no chips
        first, second = re.match(_FIRST, upper), re.match(_SECOND, lower)
        if first is not None and second is not None:
            found.setdefault(first.group(2), (first.group(1), second.group(1)))
    if not found and not trouble:
        said = text.strip().partition("\n")[0] or "nothing"
        trouble = (
            f"`{places.npu_smi} info` lists no chip; it says: {said}. Where it names DCMI, the driver is not "
            "loaded, or this container lacks /usr/local/dcmi and the driver's libraries"
        )
    return found, trouble


def soc_of(places: AscendPlaces) -> str:
    """Model of the NPUs, without number, place or count; several are joined by ``, ``.

    Empty without NPUs. Without the tool it is the family, of which PCI tells.
    """
    if not device_numbers(places):
        return ""
    chips, trouble = _chips(places)
    boards = (
        _ask(places.npu_smi, "info", "-t", "board", "-i", npu, "-c", chip) for npu, chip in chips.values()
    )
    models = {_soc_in(board) for board, _ in boards} - {""}
    if models:
        return ", ".join(sorted(models))
    found = sorted(_families(places)) or ["Ascend"]
    _log.warning(
        "the model of the NPUs is not known more closely than %s (%s); artifacts are not shared with nodes "
        "where `%s info` works", ", ".join(found), trouble or "no board names it", places.npu_smi
    )  # fmt: skip
    return ", ".join(f"{family} family" for family in found)


def _soc_in(board: str) -> str:
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
        with contextlib.suppress(OSError):
            if device.with_name("vendor").read_text().strip() == _HUAWEI:
                found.add(_FAMILIES.get(device.read_text().strip(), ""))
    return found - {""}


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
        why = (
            "CANN would stop reading at the first other sign; expected numbers and commas, without spaces "
            "and ranges, such as 0,1,2"
        )
    else:
        numbers = tuple(map(int, text.split(",")))
        missing = [number for number in numbers if number >= num_devices]
        if any(after <= before for before, after in pairwise(numbers)):
            why = "CANN takes numbers in rising order only, each once"
        elif missing:
            there = f"this machine has {num_devices} NPUs, numbered from 0"
            why = f"it names {', '.join(map(str, missing))}, but {there}"
        else:
            return numbers
    msg = f"{VARIABLE}={text}: {why}. Set it anew, or unset it to use every NPU."
    raise DeviceUnavailable(msg, kind="npu", variable=VARIABLE, actual=text)


class Installation(Value):
    """Ascend's software and devices on this machine, for checks."""

    cann: str  # release of CANN, such as ``8.5.0``; empty where there is none
    cann_detail: str  # what the fingerprint says of CANN: release, build, and packages of other versions
    home: str  # directory of CANN; empty where there is none
    driver: str  # version of the driver; empty where there is none
    soc: str  # model of the NPUs, such as ``Ascend910B2``; several are joined by ``, ``; empty without NPUs
    problems: tuple[str, ...]  # what is wrong or does not fit, each with its remedy


def installation() -> Installation:
    """Look at this machine; takes a second or two where there are NPUs, because ``npu-smi`` does."""
    places = ascend_places()
    cann = cann_of(places)
    trouble = _chips(places)[1] if device_numbers(places) else ""
    return Installation(
        cann=cann.release,
        cann_detail=cann.text(),
        home=cann.home,
        driver=driver_of(places),
        soc=soc_of(places),
        problems=(*package_problems(places), *filter(None, [trouble])),
    )
