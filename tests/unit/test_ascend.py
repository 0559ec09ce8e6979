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
from warmrank.worker.ascend.places import Places, places_of
from warmrank.worker.ascend.versions import cann_of, fit, package_problems
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


def test_cann_8_is_read_from_its_version_file(places: Places, tmp_path: Path) -> None:
    names = ("runtime", "compiler", "hccl", "opp", "toolkit")
    lines = [f"{name}_running_version=[7.6.0.1.220:8.0.0]" for name in names]
    lines += [f"{name}_upgrade_version=[7.6.0.1.220:8.0.0]" for name in names]
    home = tmp_path / "ascend-toolkit" / "latest"
    machine.write(home / "version.cfg", "\n".join(["# version: 1.0", *lines, ""]))
    found = cann_of(places)
    assert found.release == "8.0.0"
    assert found.text() == "8.0.0 7.6.0.1.220"


@pytest.mark.parametrize("name", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_directory_that_set_env_names_is_the_only_one(tmp_path: Path, name: str) -> None:
    found = places_of({name: str(tmp_path)}, tmp_path)
    assert found.cann == (tmp_path,)
    (problem,) = package_problems(found)
    assert "holds no CANN: source set_env.sh" in problem


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


def test_table_of_a3_has_two_chips_an_npu() -> None:
    found = chips_in(machine.TABLE_A3)
    assert [(chip.npu, chip.chip, chip.name) for chip in found] == [(0, 0, "Ascend910"), (0, 1, "Ascend910")]
    assert [chip.memory_mb for chip in found] == [65536, 65536]


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


def test_tool_that_finds_no_driver_is_a_problem_in_its_words(places: Places, tmp_path: Path) -> None:
    machine.write(tmp_path / "dev" / "davinci0", "")
    machine.lay_out_tool(tmp_path, "dcmi module initialize failed. ret is -8005", "")
    (problem,) = installation(places).problems
    assert "it says: dcmi module initialize failed. ret is -8005" in problem


def test_tool_that_hangs_is_given_up(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write(tmp_path / "dev" / "davinci0", "")
    machine.write(tmp_path / "npu-smi", "#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "npu-smi").chmod(0o755)
    monkeypatch.setattr(chips, "_TIMEOUT_S", 0.05)
    (problem,) = installation(places).problems
    assert "does not answer within 0.05 s" in problem


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
