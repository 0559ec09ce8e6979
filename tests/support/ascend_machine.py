"""Lays out a machine with Ascend's software and NPUs below a directory: version files, devices, ``npu-smi``.

The texts are those of real machines, shortened; sources stand beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from warmrank.worker.settings import AscendPlaces

# vllm-ascend#1664: `cat ascend_toolkit_install.info` of CANN 8.1.RC1, with another version.
INSTALL_INFO = """package_name=Ascend-cann-{package}
version={version}
innerversion={build}
compatible_version=[V100R001C15],[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C21]
arch=aarch64
os=linux
path=/usr/local/Ascend/ascend-toolkit/{version}/aarch64-linux
"""
BUILD = "V100R001C25SPC001B212"

# A driver of 2025, from the notes of a deployment with Atlas A2.
DRIVER_INFO = """Version=7.35.23
ascendhal_version=7.35.23
aicpu_version=1.0
Innerversion=V100R001C21SPC002B220
compatible_version=[V100R001C17],[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C25]
package_version={version}
"""

# Project-HAMi/HAMi-WebUI#47 and 1Panel#9472: `npu-smi info` on Atlas A2.
TABLE_A2 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
{rows}
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
"""
ROW_A2 = """\
| {npu}     {name: <20}| OK            | 88.2        30                0    / 0             |
| 0                         | 0000:C{npu}:00.0  | 0           0    / 0          26838/ 32768         |
+===========================+===============+====================================================+"""

# `npu-smi info -t board -i 0 -c 0`, from the documents of MindStudio's msOpProf.
BOARD_A2 = """        NPU ID                         : 0
        Chip ID                        : 0
        Chip Type                      : Ascend
        Chip Name                      : {name}
"""


def ascend_places(root: Path) -> AscendPlaces:
    """Where a machine laid out below ``root`` keeps its things; nothing is there yet."""
    return AscendPlaces(
        cann=(root / "cann", root / "ascend-toolkit" / "latest"),
        nnal=(root / "nnal" / "atb" / "latest" / "version.info",),
        install_info=root / "ascend_install.info",
        ascend=root / "Ascend",
        devices=root / "dev",
        pci=root / "pci",
        npu_smi=str(root / "npu-smi"),
    )


def write(path: Path, text: str) -> None:
    """Write a file, and make its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lay_out_cann(home: Path, version: str, *, build: str = BUILD) -> None:
    """A CANN of the layout of 8.5 and later."""
    arch = home / "aarch64-linux"
    info = INSTALL_INFO.format(package="toolkit", version=version, build=build)
    write(arch / "ascend_toolkit_install.info", info)
    write(
        arch / "ascend_ops_install.info",
        INSTALL_INFO.format(package="910b-ops", version=version, build=build),
    )
    for package in ("runtime", "hccl", "ops-legacy"):
        write(home / "share" / "info" / package / "version.info", f"Version={version}\n")


def lay_out_driver(root: Path, version: str) -> None:
    """A driver in the default directory."""
    write(root / "Ascend" / "driver" / "version.info", DRIVER_INFO.format(version=version))


def lay_out_npus(root: Path, name: str, num_npus: int) -> None:
    """Device files and an ``npu-smi``, of Atlas A2."""
    for number in range(num_npus):
        write(root / "dev" / f"davinci{number}", "")
    for other in ("davinci_manager", "hisi_hdc", "null"):
        write(root / "dev" / other, "")
    rows = "\n".join(ROW_A2.format(npu=number, name=name) for number in range(num_npus))
    lay_out_tool(root, TABLE_A2.format(rows=rows), BOARD_A2.format(name=name))


def lay_out_tool(root: Path, table: str, board: str) -> None:
    """An ``npu-smi`` that prints one text for its table and one for a board."""
    tool = root / "npu-smi"
    answers = json.dumps([table, board])
    write(tool, f"#!{sys.executable}\nimport sys\nprint({answers}['board' in sys.argv])\n")
    tool.chmod(0o755)
