"""An emulated device on memory of the CPU: streams, private pools, graphs.

All work is done at once, on whatever stream; so streams and events are told apart, and order nothing. What
waits for the device breaks a capture that is under way.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, ClassVar, Self

import torch

from .graph import NOT_PERMITTED, Graph, Memory, Recording, Use

PoolId = tuple[int, int]
DEFAULT_STREAM = 0
# torch_npu hands out streams of a pool of this size in turn (c10_npu::kStreamsPerPool).
STREAMS_IN_POOL = 32
# What an Atlas A2 has for all processes of a device; each captured graph keeps at least one.
DEVICE_STREAMS = 1984


class Device:
    """What one process sees of its devices."""

    def __init__(self, num_devices: int = 1, *, num_streams: int = DEVICE_STREAMS) -> None:
        self.num_devices = num_devices
        self.num_streams = num_streams
        self.index = 0
        self.current_streams: dict[int, int] = {}
        self.is_generator_stuck = False  # as torch leaves it when a capture fails
        self.memories: dict[PoolId, Memory] = {}
        self.released: list[torch.Tensor] = []  # kept, so that a use after release reads what it must not
        self.allocated = self.peak = 0
        self.graph_type = type("EmulatedGraph", (Graph,), {"device": self})
        self._recording: Recording | None = None
        self._graphs: dict[PoolId, weakref.WeakSet[Graph]] = {}
        self._pool_numbers = itertools.count(1)
        self._stream_numbers = itertools.cycle(range(1, STREAMS_IN_POOL + 1))

    @property
    def is_capturing(self) -> bool:
        return self._recording is not None

    def new_stream(self) -> int:
        return next(self._stream_numbers)

    def current_stream(self, index: int) -> int:
        return self.current_streams.get(index, DEFAULT_STREAM)

    def wait(self) -> None:
        if self._recording is not None:
            self._recording.broken = True
            raise RuntimeError(NOT_PERMITTED)

    def graph_pool_handle(self) -> PoolId:
        return (0, next(self._pool_numbers))

    def memory_of(self, pool: PoolId) -> Memory:
        return self.memories.setdefault(pool, Memory(self.count))

    def begin_capture(self, graph: Graph, pool: PoolId) -> Memory:
        if self.current_stream(self.index) == DEFAULT_STREAM:
            msg = "graphs must be captured on a non-default stream"
            raise RuntimeError(msg)
        if self._recording is not None:
            msg = "another capture is under way"
            raise RuntimeError(msg)
        if sum(map(len, self._graphs.values())) >= self.num_streams:
            msg = (
                "The resources are insufficient (error 207008): no stream is left for another captured graph"
            )
            raise RuntimeError(msg)
        memory = self.memory_of(pool)
        if memory.is_stuck:
            msg = "already recording to this memory pool"
            raise RuntimeError(msg)
        self._graphs.setdefault(pool, weakref.WeakSet()).add(graph)
        self._recording = Recording(memory)
        self._recording.__enter__()
        return memory

    def end_capture(self) -> Recording:
        if self._recording is None:
            msg = "no capture is under way"
            raise RuntimeError(msg)
        recording, self._recording = self._recording, None
        recording.__exit__(None, None, None)
        recording.undo()
        self.is_generator_stuck = recording.broken
        recording.memory.is_stuck = recording.broken
        return recording

    def unstick(self, pool: PoolId) -> None:
        self.memory_of(pool).is_stuck = False

    def forget(self, graph: Graph, pool: PoolId) -> None:
        self._graphs.get(pool, weakref.WeakSet()).discard(graph)

    def empty_cache(self) -> None:
        self.wait()
        for pool, memory in list(self.memories.items()):
            if not self._graphs.get(pool):
                self.released.extend(memory.release())
                if not memory.segments:
                    del self.memories[pool]

    def checkpoint(self, pool: PoolId) -> dict[int, Use]:
        return self.memory_of(pool).checkpoint()

    def snapshot(self, pool: PoolId | None = None) -> list[dict[str, Any]]:
        pools = [pool] if pool is not None else list(self.memories)
        return [
            segment
            for item in pools
            if item in self.memories
            for segment in self.memories[item].snapshot(segment_pool_id=item, device=self.index, stream=0)
        ]

    def count(self, size_bytes: int) -> None:
        self.allocated += size_bytes
        self.peak = max(self.peak, self.allocated)


DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1
_ADDRESSES = itertools.count(0x1000, 0x100)


class _Waits:
    """What the host can wait for."""

    emulated: ClassVar[Device]  # set in a class of its own

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def query(self) -> bool:
        self.emulated.wait()
        return True

    def synchronize(self) -> None:
        self.emulated.wait()


class StreamBase(_Waits):
    """``torch_npu._C._NPUStreamBase``."""

    stream_id: int
    device_index: int
    priority: int

    def __new__(cls, *_: Any, priority: int = 0, **fields: Any) -> Self:
        made = super().__new__(cls)
        made.priority = priority
        made.device_index = int(fields.get("device_index", cls.emulated.index))
        made.stream_id = int(fields["stream_id"] if "stream_id" in fields else cls.emulated.new_stream())
        return made

    @property
    def device_type(self) -> int:
        return DEVICE_TYPE

    @property
    def device(self) -> torch.device:
        return torch.device("npu", self.device_index)

    @property
    def npu_stream(self) -> int:
        return 0x10000 * (self.device_index + 1) + self.stream_id

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool) -> None:
        """Nothing follows from it here."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamBase) and self.npu_stream == other.npu_stream

    def __hash__(self) -> int:
        return hash(self.npu_stream)


class EventBase(_Waits):
    """``torch_npu._C._NPUEventBase``."""

    npu_event: int

    def __new__(cls, **_: Any) -> Self:
        made = super().__new__(cls)
        made.npu_event = next(_ADDRESSES)
        return made

    def record(self, stream: StreamBase) -> None:
        """What was before it on the stream has been done already."""

    def wait(self, stream: StreamBase) -> None:
        """It has happened."""

    def reset(self, stream: StreamBase | None = None) -> None:
        """It can be waited for anew."""

    def elapsed_time(self, end: EventBase) -> float:
        del end
        return 0.0
