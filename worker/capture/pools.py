"""Pools that graphs are captured into, each with the lock under which its graphs run.

Graphs of one pool lie over each other, so only one of them may run at a time: a lock belongs to a pool, and
all functions that share the pool share the lock.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.capture.statistics import PoolStatistics
from warmrank.worker.devices import KINDS, backend_for

if TYPE_CHECKING:
    from warmrank.worker.capture.captures import Entry
    from warmrank.worker.devices import DeviceBackend, PoolHandle


class CapturePool:
    """One pool and what is in it."""

    def __init__(self, backend: DeviceBackend, handle: PoolHandle | None = None) -> None:
        self.pool = backend.pool(handle)
        self.lock = threading.RLock()
        self._handle = handle
        self._entries: weakref.WeakKeyDictionary[Entry, tuple[range, ...]] = weakref.WeakKeyDictionary()

    def add(self, entry: Entry, aliased: frozenset[int]) -> None:
        """Count a graph that was captured into this pool, for as long as it is kept.

        Outputs at the positions ``aliased`` lie in its inputs, not in the pool.
        """
        storages = (
            value.untyped_storage()
            for index, value in enumerate(entry.captured.outputs)
            if index not in aliased and isinstance(value, torch.Tensor)
        )
        self._entries[entry] = tuple(
            range(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages
        )

    def returned(self, tensor: torch.Tensor) -> bool:
        """True if a tensor lies in what a graph of this pool returned."""
        address = tensor.data_ptr()
        return any(address in memory for outputs in tuple(self._entries.values()) for memory in outputs)

    def statistics(self) -> PoolStatistics:
        """Bytes that the pool holds, and bytes that sharing it saves."""
        sizes = [entry.captured.size_bytes for entry in tuple(self._entries.keys())]
        size_bytes = self.pool.size_bytes
        return PoolStatistics(
            handle=self._handle,
            num_graphs=len(sizes),
            size_bytes=size_bytes,
            saved_bytes=max(0, sum(sizes) - size_bytes),
        )


_given: weakref.WeakValueDictionary[tuple[str, Any], CapturePool] = weakref.WeakValueDictionary()
_given_lock = threading.Lock()


def pool_of(backend: DeviceBackend, handle: PoolHandle) -> CapturePool:
    """The pool of a handle that was given, the same for all who give it."""
    with _given_lock:
        pool = _given.get((backend.kind, handle))
        if pool is None:
            pool = _given[backend.kind, handle] = CapturePool(backend, handle)
        return pool


def graph_pool_handle(device_kind: str | None = None) -> PoolHandle:
    """A handle for ``config.aclgraph_config.use_custom_pool``: all functions that get it share one pool.

    TorchAir's scripts call ``torch.npu.graph_pool_handle()``.

    It is ``cpu``, ``cuda`` or ``npu``; by default the accelerator that torch finds, else the CPU.

    Raises:
        DeviceUnavailable: this machine has no such device, or there is no such device kind.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    present = found.type if found is not None and found.type in KINDS else "cpu"
    return backend_for(device_kind or present).new_handle()
