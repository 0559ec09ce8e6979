"""Ascend's software on this machine: where it lies, its versions, and which of them belong together.

Versions of CANN, NNAL, the driver and the firmware are read from the files that their installers leave. CANN
up to 8.3, below its directory (``ascend-toolkit/latest``)::

    version.cfg                                 runtime_running_version=[7.6.0.1.220:8.0.0]   build:release
    <arch>-linux/ascend_toolkit_install.info    version=8.1.RC1, innerversion=V100R001C21SPC001B238
    {runtime,compiler,opp,hccl}/version.info    Version=7.6.0.1.220

CANN 8.5 and later, below ``cann-<version>``::

    <arch>-linux/ascend_toolkit_install.info, ascend_ops_install.info   version=9.0.0, innerversion=...
    share/info/<package>/version.info                                   Version=9.0.0

Which files are read, and by whom else: ``torch_npu/utils/collect_env.py`` (``ascend_*_install.info``); CANN's
own runtime (``share/info/<package>/version.info``, and ``/etc/ascend_install.info`` for driver and firmware).
Packages can be upgraded one by one, so all that are found count, not only the toolkit's.

Which releases of torch, torch_npu, CANN and the driver belong together is data, as Ascend documents it:
COMPATIBILITY.md of https://gitcode.com/Ascend/pytorch (torch_npu, torch and CANN), ``Requires-Dist`` of
torch_npu's packages (torch), and the release notes of CANN 8.5.0, 9.1.0 and 9.1.1 at
https://gitcode.com/cann/release-management (CANN and driver, which Ascend calls HDK). As of 2026-11. What is
in no table is not judged: a torch_npu without a row, such as 2.13, is compared with its torch only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from warmrank.worker.settings import AscendPlaces
from warmrank.worker.values import Value

# Text, not patterns: they are compiled where there is such a file, and not on every import.
_LINE = r"(?m)^[ \t]*([A-Za-z][\w -]*?)[ \t]*[=:][ \t]*(.+?)[ \t]*$"
_RUNNING = "_running_version"
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
                nnal=_nnal(places),
                home=str(home),
            )
    return Cann()


def driver_of(places: AscendPlaces) -> str:
    """Version of the driver; empty where there is none."""
    return _own_version(_info(places, "driver"))


def firmware_of(places: AscendPlaces) -> str:
    """Version of the firmware; empty where it cannot be seen."""
    return _own_version(_info(places, "firmware"))


def package_problems(places: AscendPlaces) -> tuple[str, ...]:
    """Mismatches by the packages' own lists, each with its remedy; on the rest they are silent."""
    cann = cann_of(places)
    driver = _info(places, "driver")
    problems = []
    if not cann.release and len(places.cann) == 1:
        problems.append(
            f"{places.cann[0]}, which ASCEND_HOME_PATH or ASCEND_TOOLKIT_HOME names, holds no CANN: source "
            "set_env.sh of the CANN that is installed"
        )
    firmware, allowed = firmware_of(places), driver.get("compatible_version_fw", "")
    if firmware and not _within(firmware, allowed):
        problems.append(
            f"firmware {firmware} is outside {allowed}, which driver {_own_version(driver)} works with: "
            "install the firmware that belongs to the driver"
        )
    if cann.build and not _related(cann, driver):
        problems.append(
            f"CANN {cann.release} ({cann.build}) and driver {_own_version(driver)} "
            f"({driver.get('Innerversion')}) do not list each other as compatible: install a driver that "
            "CANN's release notes name"
        )
    return tuple(problems)


def _release(home: Path) -> tuple[str, str]:
    """Release and build of the package that brought this CANN."""
    for package in _INSTALLED:
        for file in sorted(home.glob(f"*-linux/ascend_{package}_install.info")):
            fields = _fields(file)
            if fields.get("version"):
                return fields["version"], fields.get("innerversion", "")
    running = _fields(home / "version.cfg").get(f"runtime{_RUNNING}", "").strip("[]")
    return running.rpartition(":")[2], ""


def _packages(home: Path) -> dict[str, str]:
    """The version of each package of a CANN."""
    found = {}
    for name, value in _fields(home / "version.cfg").items():
        if name.endswith(_RUNNING):
            found[name.removesuffix(_RUNNING)] = value.strip("[]").partition(":")[0]
    for file in _first_each([*home.glob("share/info/*/version.info"), *home.glob("*/version.info")]):
        version = _own_version(_fields(file))
        if version:
            found[file.parent.name] = version
    for file in sorted(home.glob("*-linux/ascend_*ops_install.info")):
        found["ops"] = _fields(file).get("version", "")
    return {name: version for name, version in found.items() if version}


def _first_each(files: Iterable[Path]) -> list[Path]:
    """The first file of each package: links to an older layout lead to the same files."""
    first: dict[str, Path] = {}
    for file in files:
        first.setdefault(file.parent.name, file)
    return [first[name] for name in sorted(first)]


def _nnal(places: AscendPlaces) -> str:
    for file in places.nnal:
        fields = _fields(file)
        version = fields.get("Ascend-cann-atb Version") or fields.get("Ascend-cann-atb")
        if version:
            return version
    return ""


def _info(places: AscendPlaces, package: str) -> dict[str, str]:
    """The fields of the driver's or the firmware's ``version.info``."""
    param = f"{package.capitalize()}_Install_Path_Param"
    root = _fields(places.install_info).get(param)
    return _fields((Path(root) if root else places.ascend) / package / "version.info")


def _own_version(fields: Mapping[str, str]) -> str:
    """``package_version`` is the release that users know; beside it ``Version`` may be a component's."""
    return fields.get("package_version") or fields.get("Version", "")


def _within(version: str, bounds: str) -> bool:
    """True if a version lies in a range such as ``[7.0.0,7.2.99]``; True where the range cannot be read."""
    ends = [_numbers(end) for end in bounds.strip("[]").split(",")]
    if len(ends) != len(("low", "high")) or not all(ends):
        return True
    length = len(ends[0])
    return ends[0] <= _numbers(version)[:length] <= ends[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _related(cann: Cann, driver: Mapping[str, str]) -> bool:
    """True if CANN or the driver names the other one's line of builds; True where they name none."""
    listed = driver.get("compatible_version", "")
    own = re.match(_LINEAGE, driver.get("Innerversion", ""))
    line = re.match(_LINEAGE, cann.build)
    if not listed or own is None or line is None or own.group() == line.group():
        return True
    toolkit = [
        _fields(file).get("compatible_version", "")
        for file in sorted(Path(cann.home).glob("*-linux/ascend_*_install.info"))
    ]
    return f"[{line.group()}]" in listed or any(f"[{own.group()}]" in text for text in toolkit)


def _fields(file: Path) -> dict[str, str]:
    """``name=value`` or ``name : value`` lines of a file; none where it cannot be read."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(_LINE, text))


# The series of CANN that releases of torch_npu, the newest first, are built for and tested with.
_RELEASES = {
    "9.1": (
        "2.12.0.post2", "2.12.0", "2.11.0.post2", "2.11.0", "2.10.0.post6", "2.10.0.post4", "2.9.0.post8",
        "2.9.0.post6", "2.7.1.post10", "2.7.1.post8",
    ),
    "9.0": ("2.10.0", "2.9.0.post2", "2.8.0.post4", "2.7.1.post4"),
    "8.5": ("2.9.0", "2.8.0.post2", "2.7.1.post2"),
    "8.3": ("2.8.0", "2.7.1"),
}  # fmt: skip
_CANN_OF = {release: series for series, releases in _RELEASES.items() for release in releases}
# CANN -> the series of the driver that it runs on.
_DRIVERS = {
    "9.1": ("25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
    "9.0": ("25.0", "25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
    "8.5": ("25.0", "25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
}


def fit(torch: str, torch_npu: str, cann: str, driver: str = "") -> tuple[str, ...]:
    """Versions that do not belong together, each with its remedy; empty if none is known to be wrong.

    Versions such as ``2.12.0+cpu``, ``2.12.0.post2``, ``9.1.0`` and ``25.5.2``. Empty ones are not judged:
    whether something is missing is another question.
    """
    return tuple(
        problem
        for problem in (_of_torch(torch, torch_npu), _of_cann(torch_npu, cann), _of_driver(cann, driver))
        if problem
    )


def _of_torch(torch: str, torch_npu: str) -> str:
    wanted, found = _release_of(torch_npu), _release_of(torch)
    if not wanted or not found or wanted == found:
        return ""
    return (
        f"torch_npu {torch_npu} is made for torch {'.'.join(map(str, wanted))}, and torch {torch} is "
        f"installed: install torch_npu=={'.'.join(map(str, found))}.*, or that torch"
    )


def _of_cann(torch_npu: str, cann: str) -> str:
    wanted, found = _CANN_OF.get(torch_npu.partition("+")[0], ""), _series(cann)
    if not wanted or not found or wanted == found:
        return ""
    others = [
        name
        for name, series in _CANN_OF.items()
        if series == found and _release_of(name) == _release_of(torch_npu)
    ]
    instead = f", or torch_npu {others[0]}, which is for CANN {found}" if others else ""
    return (
        f"torch_npu {torch_npu} is made for CANN {wanted}, and CANN {cann} is installed: "
        f"install CANN {wanted}{instead}"
    )


def _of_driver(cann: str, driver: str) -> str:
    allowed, found = _DRIVERS.get(_series(cann), ()), _series(driver)
    # A driver that is newer than the table was not looked at when the table was made.
    if not allowed or not found or found in allowed or _numbers(found) > max(map(_numbers, allowed)):
        return ""
    return (
        f"CANN {cann} runs on drivers {', '.join(allowed)}, and driver {driver} is installed: "
        f"install driver {allowed[-1]}"
    )


def _release_of(version: str) -> tuple[int, ...]:
    """``(2, 12, 0)`` of ``2.12.0.post2+git123``."""
    match = re.match(r"\d+(?:\.\d+){1,2}", version)
    return _numbers(match.group()) if match else ()


def _series(version: str) -> str:
    """``9.1`` of ``9.1.0``, of ``9.1.RC1`` and of ``9.1.T3.B010``."""
    match = re.match(r"\d+\.\d+", version)
    return match.group() if match else ""
