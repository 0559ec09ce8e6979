"""Native functions of torch_npu for memory: the allocator, checkpoints of pools, tensors over addresses."""

from __future__ import annotations

from typing import Any

import torch

from warmrank.worker.npu_emulator.device import Device
from warmrank.worker.npu_emulator.missing import nothing
from warmrank.worker.torch_private.graph_memory import borrowed, storage_at


class MemoryFunctions:
    """The allocator of an emulated device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def table(self) -> dict[str, Any]:
        """Name in ``torch_npu._C`` -> what stands there."""
        return self._allocator() | self._tensors()

    def _allocator(self) -> dict[str, Any]:
        device = self._device
        return {
            "_npu_emptyCache": device.empty_cache,
            "_npu_hostEmptyCache": nothing,
            "_npu_emptyVirtAddrCache": nothing,
            "_npu_memoryStats": self._stats,
            "_npu_hostMemoryStats": self._stats,
            "_npu_resetPeakMemoryStats": self._reset_peak,
            "_npu_resetPeakHostMemoryStats": nothing,
            "_npu_resetAccumulatedMemoryStats": nothing,
            "_npu_memorySnapshot": lambda pool: {"segments": device.snapshot(pool)},
            "_npu_getAllocatorBackend": lambda: "native",
            "_npu_getCheckpointState": lambda _, pool: (pool, device.checkpoint(pool)),
            "_npu_setCheckpointPoolState": self._set_state,
            "_npu_endAllocateToPool": lambda _, pool: device.unstick(pool),
            "_npu_setMemoryFraction": nothing,
            "_npu_getMemoryFraction": lambda *_: 1.0,
        }

    @staticmethod
    def _tensors() -> dict[str, Any]:
        return {
            "_construct_storage_from_data_pointer": storage_at,
            "_construct_NPU_Tensor_From_Storage_And_Metadata": _tensor_over,
            "_weak_ref_tensor": lambda tensor: borrowed([tensor], None)[0],
            "_tensors_data_ptrs_at_indices_equal": lambda tensors, addresses, indices: all(
                tensors[index].data_ptr() == addresses[index] for index in indices
            ),
        }

    def _stats(self, *_: Any) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": self._device.allocated, "peak": self._device.peak}}}

    def _reset_peak(self, *_: Any) -> None:
        self._device.peak = self._device.allocated

    def _set_state(self, _: int, state: Any, stale: list[int], __: list[int]) -> None:
        del stale  # whoever still holds memory that is taken away here gives back what is no longer its own
        pool, uses = state
        self._device.memory_of(pool).restore(uses)


def _tensor_over(metadata: Any, storage: Any) -> torch.Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        made = torch.empty(0, dtype=metadata["dtype"])
        return made.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])
