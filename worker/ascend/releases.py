"""Which releases of torch, torch_npu, CANN and the driver belong together, as Ascend documents it: data.

Sources: COMPATIBILITY.md of https://gitcode.com/Ascend/pytorch (torch_npu, torch and CANN), ``Requires-Dist``
of torch_npu's packages (torch), and the release notes of CANN 8.5.0, 9.1.0 and 9.1.1 at
https://gitcode.com/cann/release-management (CANN and driver, which Ascend calls HDK). As of 2026-11. What is
in no table is not judged: a torch_npu without a row, such as 2.13, is compared with its torch only.
"""

from __future__ import annotations

import re

# torch_npu -> the series of CANN that it is built for and tested with.
_CANN = {
    "2.12.0.post2": "9.1",
    "2.12.0": "9.1",
    "2.11.0.post2": "9.1",
    "2.11.0": "9.1",
    "2.10.0.post6": "9.1",
    "2.10.0.post4": "9.1",
    "2.10.0": "9.0",
    "2.9.0.post8": "9.1",
    "2.9.0.post6": "9.1",
    "2.9.0.post2": "9.0",
    "2.9.0": "8.5",
    "2.8.0.post4": "9.0",
    "2.8.0.post2": "8.5",
    "2.8.0": "8.3",
    "2.7.1.post10": "9.1",
    "2.7.1.post8": "9.1",
    "2.7.1.post4": "9.0",
    "2.7.1.post2": "8.5",
    "2.7.1": "8.3",
}
# CANN -> the series of the driver that it runs on.
_DRIVERS = {
    "9.1": ("25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
    "9.0": ("25.0", "25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
    "8.5": ("25.0", "25.2", "25.3", "25.5", "25.7", "26.0", "26.1"),
}


def fit(torch: str, torch_npu: str, cann: str, driver: str = "") -> tuple[str, ...]:
    """What does not belong together, each with its remedy; empty where nothing is known to be wrong.

    Args:
        torch: version of torch, such as ``2.12.0+cpu``.
        torch_npu: version of torch_npu, such as ``2.12.0.post2``.
        cann: release of CANN, such as ``9.1.0``.
        driver: version of the driver, such as ``25.5.2``.

    Empty versions are not judged: whether something is missing is another question.
    """
    return tuple(
        problem
        for problem in (_of_torch(torch, torch_npu), _of_cann(torch_npu, cann), _of_driver(cann, driver))
        if problem
    )


def _of_torch(torch: str, torch_npu: str) -> str:
    wanted, found = _release(torch_npu), _release(torch)
    if not wanted or not found or wanted == found:
        return ""
    return (
        f"torch_npu {torch_npu} is made for torch {'.'.join(map(str, wanted))}, and torch {torch} is "
        f"installed: install torch_npu=={'.'.join(map(str, found))}.*, or that torch"
    )


def _of_cann(torch_npu: str, cann: str) -> str:
    wanted, found = _CANN.get(torch_npu.partition("+")[0], ""), _series(cann)
    if not wanted or not found or wanted == found:
        return ""
    others = [
        name for name, series in _CANN.items() if series == found and _release(name) == _release(torch_npu)
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


def _release(version: str) -> tuple[int, ...]:
    """``(2, 12, 0)`` of ``2.12.0.post2+git123``."""
    match = re.match(r"\d+(?:\.\d+){1,2}", version)
    return _numbers(match.group()) if match else ()


def _series(version: str) -> str:
    """``9.1`` of ``9.1.0``, of ``9.1.RC1`` and of ``9.1.T3.B010``."""
    match = re.match(r"\d+\.\d+", version)
    return match.group() if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
