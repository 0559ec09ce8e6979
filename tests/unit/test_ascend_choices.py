"""Visible NPUs, releases that belong together, and the time-outs of HCCL: pure functions."""

from __future__ import annotations

import pytest

from warmrank.worker.ascend.chips import visible_devices
from warmrank.worker.ascend.hccl import time_outs, watchdog_s
from warmrank.worker.ascend.versions import fit
from warmrank.worker.errors import DeviceUnavailable

# --- ASCEND_RT_VISIBLE_DEVICES ---


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2"}, (2,)),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,1,3"}, (0, 1, 3)),
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, ()),
        ({"ASCEND_RT_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"ASCEND_VISIBLE_DEVICES": "0-1"}, (0, 1, 2, 3)),
    ],
)
def test_visible_npus_are_read_as_cann_reads_them(environ: dict[str, str], expected: tuple[int, ...]) -> None:
    assert visible_devices(environ, 4) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0, 1", "CANN would stop reading"),
        ("0-3", "CANN would stop reading"),
        ("0,", "CANN would stop reading"),
        ("0,-1", "CANN would stop reading"),
        ("npu:0", "CANN would stop reading"),
        ("3,1", "rising order"),
        ("1,1", "rising order"),
        ("1,4,9", "it names 4, 9, but this machine has 4 NPUs, numbered from 0"),
    ],
)
def test_visible_npus_that_cann_would_cut_short_are_refused(text: str, why: str) -> None:
    with pytest.raises(DeviceUnavailable, match=why) as raised:
        visible_devices({"ASCEND_RT_VISIBLE_DEVICES": text}, 4)
    assert raised.value.actual == text
    assert "unset it to use every NPU" in str(raised.value)


# --- releases ---


def test_documented_releases_fit() -> None:
    assert fit("2.12.0+cpu", "2.12.0", "9.1.0", "26.0.rc1") == ()
    assert fit("2.9.0", "2.9.0.post2", "9.0.0", "25.5.2") == ()
    assert fit("2.8.0", "2.8.0", "8.3.RC1") == ()


def test_torch_of_another_release_is_named_with_the_torch_npu_for_it() -> None:
    (problem,) = fit("2.12.0", "2.13.0", "9.1.0")
    assert problem == (
        "torch_npu 2.13.0 is made for torch 2.13.0, and torch 2.12.0 is installed: "
        "install torch_npu==2.12.0.*, or that torch"
    )


def test_cann_of_another_series_is_named_with_the_torch_npu_for_it() -> None:
    (problem,) = fit("2.9.0", "2.9.0", "9.0.0")
    assert problem == (
        "torch_npu 2.9.0 is made for CANN 8.5, and CANN 9.0.0 is installed: "
        "install CANN 8.5, or torch_npu 2.9.0.post2, which is for CANN 9.0"
    )


def test_driver_that_is_too_old_for_cann_is_named() -> None:
    (problem,) = fit("2.12.0", "2.12.0", "9.1.0", "25.0.rc1")
    assert problem.startswith(
        "CANN 9.1.0 runs on drivers 25.2, 25.3, 25.5, 25.7, 26.0, 26.1, and driver 25.0.rc1"
    )


@pytest.mark.parametrize(
    ("torch", "torch_npu", "cann", "driver"),
    [
        ("2.13.0", "2.13.0", "9.2.0", "27.0"),  # newer than the tables
        ("", "", "", ""),
        ("none", "2.12.0", "", "none"),
        ("2.12.0", "2.12.0+git1234567", "9.1.T3.B010", ""),
    ],
)
def test_what_no_table_has_is_not_judged(torch: str, torch_npu: str, cann: str, driver: str) -> None:
    assert fit(torch, torch_npu, cann, driver) == ()


# --- HCCL ---


@pytest.mark.parametrize(("timeout_s", "connect", "execute"), [(30.0, "120", "30"), (9000.5, "7200", "9001")])
def test_time_out_to_connect_stays_in_hccl_s_range(timeout_s: float, connect: str, execute: str) -> None:
    assert time_outs(timeout_s, {}) == {"HCCL_CONNECT_TIMEOUT": connect, "HCCL_EXEC_TIMEOUT": execute}


def test_time_outs_of_the_user_stay() -> None:
    environ = {"HCCL_CONNECT_TIMEOUT": "300", "HCCL_EXEC_TIMEOUT": "0"}
    assert time_outs(600.0, environ) == {}


@pytest.mark.parametrize(
    ("execute", "expected"), [("600", 660.0), ("1836", 1896.0), ("0", 660.0), ("", 660.0)]
)
def test_watchdog_comes_after_hccl(execute: str, expected: float) -> None:
    assert watchdog_s(600.0, {"HCCL_EXEC_TIMEOUT": execute}) == expected
