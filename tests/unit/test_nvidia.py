"""GPU architectures from the driver's management library, on a stand-in for it."""

from __future__ import annotations

from typing import Any

import pytest

from warmrank.worker.keys.environment import architectures


class Library:
    """Answers as NVML does: results through pointers, 0 for success."""

    # ruff: noqa: N802 - the library's names; what byref() points to has no public reader

    def __init__(self, devices: list[tuple[bytes, int, int]], failing: str = "") -> None:
        self.devices, self.failing, self.is_open = devices, failing, False

    def nvmlInit_v2(self) -> int:
        self.is_open = self.failing != "init"
        return 0 if self.is_open else 9

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.devices)
        return 3 if self.failing == "count" else 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: Any) -> int:
        name.value = self.devices[handle.value - 1][0][: size.value]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        _, major._obj.value, minor._obj.value = self.devices[handle.value - 1]
        return 15 if self.failing == "capability" and handle.value == 1 else 0


def test_each_model_is_named_once_with_its_architecture() -> None:
    library = Library([(b"NVIDIA H100", 9, 0), (b"NVIDIA A10", 8, 6), (b"NVIDIA H100", 9, 0)])
    assert architectures(lambda name: library) == ("NVIDIA A10 sm_86", "NVIDIA H100 sm_90")
    assert not library.is_open


@pytest.mark.parametrize("failing", ["init", "count"])
def test_driver_that_does_not_answer_names_nothing(failing: str) -> None:
    library = Library([(b"NVIDIA H100", 9, 0)], failing)
    assert architectures(lambda name: library) == ()
    assert not library.is_open
