"""The device kind of a tensor, by the type of its torch device.

Every type is its own kind. Tests, whose emulated NPU keeps its tensors on the CPU, say otherwise, once.
"""

from __future__ import annotations

from typing import Literal

DeviceKind = Literal["cpu", "cuda", "npu"]

_KINDS: dict[str, str] = {}


def stand_for(memory: str, kind: str) -> None:
    """Let tensors on ``memory`` (``cpu``) count as being on a device of ``kind`` (``npu``)."""
    _KINDS[memory] = kind


def kind_of(memory: str) -> str:
    """The device kind of tensors whose device has this type."""
    return _KINDS.get(memory, memory)


def memory_of(kind: str) -> str:
    """The type of the devices on which tensors of a device kind lie."""
    return next((memory for memory, standing in _KINDS.items() if standing == kind), kind)
