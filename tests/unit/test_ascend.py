"""Ascend's software and devices, on made-up machines with the files and tables of real ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import ascend_machine as machine
from warmrank.worker.ascend import chips
from warmrank.worker.ascend.chips import chips_in, installation, soc_in, soc_of, visible_devices
from warmrank.worker.ascend.hccl import time_outs, watchdog_s
from warmrank.worker.ascend.places import Places
from warmrank.worker.ascend.versions import fit, package_problems
from warmrank.worker.errors import DeviceUnavailable


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """A machine without anything of Ascend; tests lay it out below the path."""
    chips._ask.cache_clear()
    yield machine.ascend_places(tmp_path)
    chips._ask.cache_clear()


def test_whole_installation_is_found(places: Places, tmp_path: Path) -> None:
    machine.lay_out_cann(tmp_path / "cann", "9.0.0")
    machine.lay_out_driver(tmp_path, "25.5.0", firmware="7.7.0.1.231")
    machine.lay_out_npus(tmp_path, "910B4", 2)
    found = installation(places)
    assert (found.cann, found.driver, found.firmware) == ("9.0.0", "25.5.0", "7.7.0.1.231")
    assert (found.soc, found.devices, found.home) == ("Ascend910B4", (0, 1), str(tmp_path / "cann"))
    assert [(chip.npu, chip.chip, chip.bus_id) for chip in found.chips] == [
        (0, 0, "0000:C0:00.0"),
        (1, 0, "0000:C1:00.0"),
    ]
    assert found.problems == ()


# --- CANN ---


# --- driver and firmware ---


def test_firmware_outside_of_the_driver_s_range_is_a_problem(places: Places, tmp_path: Path) -> None:
    machine.lay_out_driver(tmp_path, "25.0.rc1", firmware="7.8.0.6.201")
    (problem,) = package_problems(places)
    assert problem.startswith("firmware 7.8.0.6.201 is outside [7.0.0,7.7.99], which driver 25.0.rc1")


def test_cann_and_driver_that_do_not_know_each_other_are_a_problem(places: Places, tmp_path: Path) -> None:
    machine.lay_out_driver(tmp_path, "25.0.rc1")
    machine.lay_out_cann(tmp_path / "cann", "9.9.0", build="V100R001C30SPC001B001")
    assert package_problems(places) == ()  # CANN's own list has the driver's C21
    info = tmp_path / "cann" / "aarch64-linux"
    for file in info.iterdir():
        file.write_text(file.read_text().replace(",[V100R001C21]", ""))
    (problem,) = package_problems(places)
    assert "CANN 9.9.0 (V100R001C30SPC001B001) and driver 25.0.rc1" in problem


# --- NPUs ---


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        (machine.BOARD_A2.format(name="910B2"), "Ascend910B2"),
        (machine.BOARD_A2.format(name="910B4-1"), "Ascend910B4-1"),
        (machine.BOARD_A3, "Ascend910_9392"),
        ("Chip Type : Ascend\nChip Name : Ascend310P3\n", "Ascend310P3"),
        ("NPU Name : NA\nChip Type : Ascend\nChip Name : 910B2\n", "Ascend910B2"),
        ("NPU ID : 0\n", ""),
    ],
)
def test_model_is_put_together_from_the_board(board: str, expected: str) -> None:
    assert soc_in(board) == expected


@given(st.text(alphabet="|0123456789: /.+=-\nA", max_size=300))
def test_tables_of_any_text_are_read_or_left(table: str) -> None:
    assert all(chip.npu >= 0 and chip.memory_mb >= 0 for chip in chips_in(table))
    assert soc_in(table) == ""


@pytest.mark.parametrize(
    ("device", "expected"), [("0xd802", "Ascend910B family"), ("0xd803", "Ascend910_93 family")]
)
def test_without_the_tool_the_model_is_the_family_on_the_bus(places, tmp_path, caplog, device, expected):
    machine.write(tmp_path / "dev" / "davinci0", "")
    for slot, vendor, number in (
        ("a", "0x19e5", device),
        ("b", "0x19e5", "0x0200"),
        ("c", "0x8086", "0xd801"),
    ):
        machine.write(tmp_path / "pci" / slot / "vendor", f"{vendor}\n")
        machine.write(tmp_path / "pci" / slot / "device", f"{number}\n")
    assert soc_of(places) == expected
    assert "No such file" in caplog.text


def test_tool_that_hangs_is_given_up(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write(tmp_path / "dev" / "davinci0", "")
    machine.write(tmp_path / "npu-smi", "#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "npu-smi").chmod(0o755)
    monkeypatch.setattr(chips, "_TIMEOUT_S", 0.05)
    (problem,) = installation(places).problems
    assert "does not answer within 0.05 s" in problem


# --- ASCEND_RT_VISIBLE_DEVICES ---


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


def test_torch_of_another_release_is_named_with_the_torch_npu_for_it() -> None:
    (problem,) = fit("2.12.0", "2.13.0", "9.1.0")
    assert problem == (
        "torch_npu 2.13.0 is made for torch 2.13.0, and torch 2.12.0 is installed: "
        "install torch_npu==2.12.0.*, or that torch"
    )


# --- HCCL ---


@pytest.mark.parametrize(("timeout_s", "connect", "execute"), [(30.0, "120", "30"), (9000.5, "7200", "9001")])
def test_time_out_to_connect_stays_in_hccl_s_range(timeout_s: float, connect: str, execute: str) -> None:
    assert time_outs(timeout_s, {}) == {"HCCL_CONNECT_TIMEOUT": connect, "HCCL_EXEC_TIMEOUT": execute}


@pytest.mark.parametrize(
    ("execute", "expected"), [("600", 660.0), ("1836", 1896.0), ("0", 660.0), ("", 660.0)]
)
def test_watchdog_comes_after_hccl(execute: str, expected: float) -> None:
    assert watchdog_s(600.0, {"HCCL_EXEC_TIMEOUT": execute}) == expected
