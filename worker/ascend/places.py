"""Where a machine keeps the software and the devices of Ascend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from warmrank.worker.settings import settings
from warmrank.worker.values import Value

DEVICE = "davinci"  # device files: this, and a number

_ASCEND = Path("/usr/local/Ascend")
# Of installations with default paths, newest first: CANN 8.5 and later install into `cann-<version>` beside a
# link `cann`, earlier ones into `ascend-toolkit/<version>` beside a link `latest`.
# https://www.hiascend.com/document/detail/en/CANNCommunityEdition/850/softwareinst/instg/instg_0000.html
_CANN = ("cann", "ascend-toolkit/latest", "latest", "nnae/latest", "nnrt/latest")


class Places(Value):
    """Where to look."""

    cann: tuple[Path, ...]  # directories that may hold CANN; the first that does is it
    nnal: tuple[Path, ...]  # files that may name the version of NNAL (ATB); the first that does counts
    # names the directories of driver and firmware, where they are not the default ones
    install_info: Path = Path("/etc/ascend_install.info")
    ascend: Path = _ASCEND  # the default directory of driver and firmware
    devices: Path = Path("/dev")  # directory of the device files
    pci: Path = Path("/sys/bus/pci/devices")  # sysfs's directory of PCI devices
    npu_smi: str = "npu-smi"  # the management tool: a name, or a path

    def hold_nothing(self) -> bool:
        """Whether no trace of CANN, a driver or a device is there, as on most machines."""
        if self.install_info.exists() or self.ascend.exists() or any(map(Path.is_dir, self.cann)):
            return False
        try:
            with os.scandir(self.devices) as files:
                return not any(file.name.startswith(DEVICE) for file in files)
        except OSError:
            return True


def places_of(environ: Mapping[str, str], home: Path | None = None) -> Places:
    """Where this machine keeps them.

    A directory that CANN's ``set_env.sh`` names is the only one: torch_npu loads what lies there, and the
    version of another installation would be the wrong one.

    Args:
        environ: the variables of Ascend's software; see `worker.settings.Settings.ascend`.
        home: of the user, for installations without root; None for a user without one.
    """
    named = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    roots = [_ASCEND] if home is None else [_ASCEND, home / "Ascend"]
    atb = environ.get("ATB_HOME_PATH")
    return Places(
        cann=(Path(named),) if named else tuple(root / name for root in roots for name in _CANN),
        # set_env.sh names `<version>/atb/cxx_abi_<n>`; the version stands two levels above.
        nnal=tuple(file / "version.info" for file in ((Path(atb), *Path(atb).parents[:2]) if atb else ()))
        or tuple(root / "nnal/atb/latest/version.info" for root in roots),
    )


def here() -> Places:
    """Those of this process."""
    try:
        home = Path.home()
    except RuntimeError:
        home = None
    return places_of(settings().ascend, home)
