"""Native functions of torch_npu for devices, streams and graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from warmrank.worker.npu_emulator.device import Device
from warmrank.worker.npu_emulator.graph import Graph
from warmrank.worker.npu_emulator.missing import nothing
from warmrank.worker.npu_emulator.native_settings import CUBE_CORES, VECTOR_CORES
from warmrank.worker.npu_emulator.streams import DEVICE_TYPE, EventBase, StreamBase

DEVICE_NAME = "Ascend910B2 (emulated)"
_SOC_VERSION = 221  # SocVersion::Ascend910B2 in torch_npu/csrc/core/npu/NpuVariables.h
_MEMORY_BYTES = 64 << 30
_PROPERTIES = {
    "name": DEVICE_NAME,
    "total_memory": _MEMORY_BYTES,
    "L2_cache_size": 192 << 20,
    "cube_core_num": CUBE_CORES,
    "vector_core_num": VECTOR_CORES,
    "uuid": "emulated",
}


class DeviceFunctions:
    """Selecting devices and streams."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def table(self) -> dict[str, Any]:
        """Name in ``torch_npu._C`` -> what stands there."""
        return self._graphs() | self._selecting() | self._facts()

    def _graphs(self) -> dict[str, Any]:
        device = self._device
        return {
            "_NPUStreamBase": type("_NPUStreamBase", (StreamBase,), {"emulated": device}),
            "_NPUEventBase": type("_NPUEventBase", (EventBase,), {"emulated": device}),
            "_NPUGraph": type("_NPUGraph", (Graph,), {"device": device}),
            "_graph_pool_handle": device.graph_pool_handle,
            "_npu_isCurrentStreamCapturing": lambda: device.is_capturing,
            "_super_kernel_scope_begin": nothing,
            "_super_kernel_scope_end": nothing,
        }

    def _selecting(self) -> dict[str, Any]:
        device = self._device
        return {
            "_npu_init": nothing,
            "_npu_set_run_yet_variable_to_false": nothing,
            "_npu_getDeviceCount": lambda: device.num_devices,
            "_npu_getDevice": lambda: device.index,
            "_npu_getDeviceWithoutSet": lambda: device.index,
            "_npu_getLocalDevice": lambda: device.index,
            "_npu_setDevice": self._select,
            "_npu_maybeExchangeDevice": lambda index: self._select(index) if index >= 0 else device.index,
            "_npu_synchronize": device.wait,
            "_npu_setStream": self._use_stream,
            "_npu_getCurrentStream": self._current_stream,
            "_npu_getDefaultStream": lambda index: (0, device.index if index < 0 else index, DEVICE_TYPE),
            "_npu_eraseStream": nothing,
        }

    @staticmethod
    def _facts() -> dict[str, Any]:
        return {
            "_npu_getDeviceName": lambda *_: DEVICE_NAME,
            "_npu_getDeviceProperties": lambda *_: SimpleNamespace(**_PROPERTIES),
            "_npu_getDeviceMemories": lambda *_: SimpleNamespace(
                free_memory=_MEMORY_BYTES, total_memory=_MEMORY_BYTES
            ),
            "_npu_getDeviceUtilizationRate": lambda *_: 0,
            "_npu_canDeviceAccessPeer": lambda *_: True,
            "_npu_get_soc_version": lambda: _SOC_VERSION,
            "_npu_is_bf16_supported": lambda: True,
            "_npu_is_support_inf_nan": lambda: True,
        }

    def _select(self, index: int) -> int:
        device = self._device
        if not 0 <= index < device.num_devices:
            msg = f"Invalid device ID {index} (error 107001): {device.num_devices} devices are visible"
            raise RuntimeError(msg)
        before, device.index = device.index, index
        return before

    def _use_stream(self, *, stream_id: int, device_index: int, device_type: int) -> None:
        del device_type
        self._device.current_streams[device_index] = stream_id

    def _current_stream(self, index: int) -> tuple[int, int, int]:
        index = self._device.index if index < 0 else index
        return self._device.current_stream(index), index, DEVICE_TYPE
