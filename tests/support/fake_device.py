"""A stand-in for ``torch.cuda``: the device of `tests.npu_emulator`, under the names of torch.cuda."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from tests.npu_emulator.device import Device, PoolId


class FakeStream:
    """A stream, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


class FakeDevice(Device):
    """What the backend needs of ``torch.cuda``."""

    def __init__(self, num_devices: int = 1) -> None:
        super().__init__(num_devices)
        self.CUDAGraph = self.NPUGraph = self.graph_type

    def Stream(self) -> FakeStream:  # noqa: N802 - torch.cuda's name
        return FakeStream(self.new_stream())

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream(0)
        self.current_streams[0] = stream.number
        try:
            yield
        finally:
            self.current_streams[0] = before

    def device(self, index: int) -> contextlib.AbstractContextManager[None]:
        assert 0 <= index < self.num_devices
        return contextlib.nullcontext()

    def device_count(self) -> int:
        return self.num_devices

    def current_device(self) -> int:
        return 0

    def synchronize(self) -> None:
        self.wait()

    def memory_snapshot(self, pool_id: PoolId) -> list[dict[str, Any]]:
        return self.snapshot(pool_id)

    def memory_stats(self) -> dict[str, int]:
        return {"allocated_bytes.all.current": self.allocated, "allocated_bytes.all.peak": self.peak}

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def get_rng_state(self, index: int) -> torch.Tensor:
        assert index == 0
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        assert index == 0
        torch.set_rng_state(state)
