"""CANN's versions as an emulated NPU sees them, and a tree that holds nothing but these.

The tree has what `worker.keys.request` and the real packages read: the toolkit's ``install.info``, and a
``version.info`` of each part. The versions are read from the place that ``ASCEND_HOME_PATH`` names.
"""

from __future__ import annotations

import os
import re
from itertools import zip_longest
from pathlib import Path

VERSION = "8.5.0"  # where no CANN is
_PARTS = ("compiler", "opp", "runtime", "hccl", "toolkit", "opp_kernel")


def write_tree(root: Path, *, version: str = VERSION) -> Path:
    """Write the version files of a CANN below a directory, which ``ASCEND_HOME_PATH`` may then name."""
    info = root / "aarch64-linux" / "ascend_toolkit_install.info"
    info.parent.mkdir(parents=True, exist_ok=True)
    info.write_text(f"version={version}\n")
    for part in _PARTS:
        (root / part).mkdir(exist_ok=True)
        (root / part / "version.info").write_text(f"Version={version}\nversion_dir={version}\n")
    return root


def version_of(module: str = "CANN") -> str:
    """The version of CANN or one of its parts; empty for what is not there, as torch_npu has it."""
    home = os.environ.get("ASCEND_HOME_PATH")
    if not home:
        return VERSION
    part = "compiler" if module == "CANN" else module.lower()
    try:
        text = (Path(home) / part / "version.info").read_text("utf-8")
    except OSError:
        return ""
    found = re.search(r"^Version=(\S+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def at_least(version: str, module: str = "CANN") -> bool:
    """Whether CANN is of this version or a later one."""
    pairs = zip_longest(_numbers(version_of(module)), _numbers(version), fillvalue=0)
    return next((here > asked for here, asked in pairs if here != asked), True)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
