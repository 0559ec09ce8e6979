"""Whether an NPU can be used, and what is said where it cannot, on made-up machines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import ascend_machine as machine
from warmrank.worker.devices import accelerator
from warmrank.worker.devices.accelerator import device_module
from warmrank.worker.errors import DeviceUnavailable


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which tests lay out Ascend's things; its torch_npu can be imported."""
    places = machine.ascend_places(tmp_path)
    monkeypatch.setattr(accelerator, "here", lambda: places)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    return tmp_path


def with_devices(monkeypatch: pytest.MonkeyPatch, num_devices: int) -> Any:
    module = SimpleNamespace(is_available=lambda: num_devices > 0)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    return module


def test_npu_that_is_there_is_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lay_out_npus(root, "910B2", 8)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "5")
    module = with_devices(monkeypatch, 1)
    assert device_module("npu") is module


def test_variable_that_cann_would_cut_short_is_refused_before_torch_looks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.lay_out_npus(root, "910B2", 2)
    with_devices(monkeypatch, 1)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,2")
    with pytest.raises(DeviceUnavailable, match="it names 2, but this machine has 2 NPUs"):
        device_module("npu")


def test_variable_that_hides_every_npu_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.lay_out_npus(root, "910B2", 2)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    with_devices(monkeypatch, 0)
    with pytest.raises(DeviceUnavailable, match="hides all 2 NPUs of this machine"):
        device_module("npu")


def test_npu_that_torch_does_not_find_is_told_with_what_is_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.lay_out_cann(root / "cann", "9.0.0")
    with_devices(monkeypatch, 0)
    with pytest.raises(DeviceUnavailable, match="torch finds no device") as raised:
        device_module("npu")
    assert f"(CANN 9.0.0 in {root / 'cann'}, no driver, 0 files /dev/davinci<N>)" in str(raised.value)


def test_torch_npu_that_does_not_import_is_told_with_what_is_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    machine.lay_out_driver(root, "25.5.0")
    with pytest.raises(DeviceUnavailable, match="needs torch_npu on top of CANN") as raised:
        device_module("npu")
    assert "Seen here: no CANN, driver 25.5.0, 0 files /dev/davinci<N>" in str(raised.value)
