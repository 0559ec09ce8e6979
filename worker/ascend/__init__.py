"""Ascend's software and devices on this machine, read from files and ``npu-smi``: nothing of it is imported.

Nothing here touches a device: no context is made, and a machine without NPUs starts no process.
"""

from __future__ import annotations

from warmrank.worker.ascend.chips import Chip, chips_of, device_numbers, soc_of
from warmrank.worker.ascend.places import Places, here
from warmrank.worker.ascend.releases import fit
from warmrank.worker.ascend.versions import Cann, cann_of, driver_of, firmware_of, package_problems
from warmrank.worker.ascend.visible import visible_devices
from warmrank.worker.values import Value

__all__ = ["Cann", "Chip", "Installation", "Places", "fit", "installation", "visible_devices"]


class Installation(Value):
    """What of Ascend is installed here, for people and for checks.

    Attributes:
        cann: release of CANN, such as ``8.5.0``; empty where there is none.
        cann_detail: what the fingerprint says of CANN: release, build, and packages of other versions.
        home: directory of CANN; empty where there is none.
        nnal: version of NNAL (ATB); empty where there is none.
        driver: version of the driver; empty where there is none.
        firmware: version of the firmware; empty where it cannot be seen, as in most containers.
        soc: model of the NPUs, such as ``Ascend910B2``; several are joined by ``, ``; empty without NPUs.
        devices: numbers N of the files ``/dev/davinci<N>``.
        chips: what ``npu-smi`` says of each chip; empty where it is missing or fails.
        problems: what is wrong or does not fit, each with its remedy.
    """

    cann: str
    cann_detail: str
    home: str
    nnal: str
    driver: str
    firmware: str
    soc: str
    devices: tuple[int, ...]
    chips: tuple[Chip, ...]
    problems: tuple[str, ...]


def installation(places: Places | None = None) -> Installation:
    """Look at this machine; takes a second or two where there are NPUs, because ``npu-smi`` does."""
    places = here() if places is None else places
    cann = cann_of(places)
    devices = device_numbers(places)
    chips, trouble = chips_of(places) if devices else ((), "")
    return Installation(
        cann=cann.release,
        cann_detail=cann.text(),
        home=cann.home,
        nnal=cann.nnal,
        driver=driver_of(places),
        firmware=firmware_of(places),
        soc=soc_of(places),
        devices=devices,
        chips=chips,
        problems=(
            *package_problems(places),
            *((trouble,) if trouble else ()),
            *(chip.problem() for chip in chips if chip.problem()),
        ),
    )
