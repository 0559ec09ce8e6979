"""The classes below ``torch_npu.npu.Stream`` and ``Event``: told apart, but nothing to wait for."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Self

import torch

from warmrank.worker.npu_emulator.device import Device

DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1
_ADDRESSES = itertools.count(0x1000, 0x100)


class StreamBase:
    """``torch_npu._C._NPUStreamBase``."""

    emulated: ClassVar[Device]  # set in a class of its own
    stream_id: int
    device_index: int
    priority: int

    def __new__(cls, *_: Any, priority: int = 0, **fields: Any) -> Self:
        """Make a new stream, or another object for one that there is."""
        made = super().__new__(cls)
        made.priority = priority
        made.device_index = int(fields.get("device_index", cls.emulated.index))
        made.stream_id = int(fields["stream_id"] if "stream_id" in fields else cls.emulated.new_stream())
        return made

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @property
    def device_type(self) -> int:
        """The type of its device, as a number."""
        return DEVICE_TYPE

    @property
    def device(self) -> torch.device:
        """Its device."""
        return torch.device("npu", self.device_index)

    @property
    def npu_stream(self) -> int:
        """Its address."""
        return 0x10000 * (self.device_index + 1) + self.stream_id

    def query(self) -> bool:
        """Whether its work is done; asking breaks a capture."""
        self.emulated.wait()
        return True

    def synchronize(self) -> None:
        """Wait, which breaks a capture."""
        self.emulated.wait()

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool) -> None:
        """Nothing follows from it here."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamBase) and self.npu_stream == other.npu_stream

    def __hash__(self) -> int:
        return hash(self.npu_stream)


class EventBase:
    """``torch_npu._C._NPUEventBase``."""

    emulated: ClassVar[Device]  # set in a class of its own
    npu_event: int

    def __new__(cls, **_: Any) -> Self:
        """Make an event that has not been recorded."""
        made = super().__new__(cls)
        made.npu_event = next(_ADDRESSES)
        return made

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, stream: StreamBase) -> None:
        """What was before it on the stream has been done already."""

    def wait(self, stream: StreamBase) -> None:
        """It has happened."""

    def reset(self, stream: StreamBase | None = None) -> None:
        """It can be waited for anew."""

    def query(self) -> bool:
        """Whether it has happened; asking breaks a capture."""
        self.emulated.wait()
        return True

    def synchronize(self) -> None:
        """Wait, which breaks a capture."""
        self.emulated.wait()

    def elapsed_time(self, end: EventBase) -> float:
        """Milliseconds until another event; nothing is timed here."""
        del end
        return 0.0
