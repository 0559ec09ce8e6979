"""What stands in for ``torch_npu._C`` and for torchair's extension modules.

Names and arguments are those that the real Python of torch_npu 2.13 calls. What is not emulated says so by
name when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from warmrank.worker.torch_private.places import borrowed

from .cann import at_least, version_of
from .device import DEVICE_TYPE, Device, EventBase, StreamBase
from .graph import Graph

_CHILDREN = ("_cd", "_logging", "_flops_count", "_profiler", "_distributed_c10d", "_npurt", "_mstx")
# Real Python makes a class of its own where the native one is missing.
_ABSENT = ("_MemPool", "_npu_NPUAllocator")
DEVICE_NAME = "Ascend910B2 (emulated)"
_SOC_VERSION = 221  # SocVersion::Ascend910B2 in torch_npu/csrc/core/npu/NpuVariables.h
_MEMORY_BYTES = 64 << 30
CUBE_CORES, VECTOR_CORES = 24, 48
_PROPERTIES = {
    "name": DEVICE_NAME,
    "total_memory": _MEMORY_BYTES,
    "L2_cache_size": 192 << 20,
    "cube_core_num": CUBE_CORES,
    "vector_core_num": VECTOR_CORES,
    "uuid": "emulated",
}
# Function that reads a value, function that sets it, value at first.
_VALUES = (
    ("_npu_get_deterministic_level", "_npu_set_deterministic_level", 0),
    ("is_autocast_enabled", "set_autocast_enabled", False),
    ("get_autocast_dtype", "set_autocast_dtype", torch.float16),
    ("_npu_get_sync_debug_mode", "_npu_set_sync_debug_mode", 0),
    ("_npu_get_task_queue_enable", "_npu_set_task_queue_enable", 1),
)


class NotEmulated(RuntimeError):
    """Something of an NPU was used for which the emulator does not stand in."""


class NotNative:
    """A native function, class or module that is not emulated: it can be looked up, and not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NotNative:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotNative(f"{self._name}.{name}")

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        """As a base class it makes classes of which no instance can be made."""
        return (type(self._name.rpartition(".")[2], (), {"__init__": self}),)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        msg = (
            f"{self._name} is native code of the NPU, which the emulator does not stand in for. Run this on "
            "an NPU, or leave out what needs it."
        )
        raise NotEmulated(msg)

    def __repr__(self) -> str:
        return f"<not emulated: {self._name}>"


def nothing(*_: Any, **__: Any) -> None:
    """What a native function does from which nothing follows here."""


def native_module(device: Device) -> ModuleType:
    """``torch_npu._C``, with its children."""
    name = "torch_npu._C"
    made = _module(name, {**_devices(device), **_memory(device), **_settings()}, _ABSENT)
    made.__path__ = []
    for child in _CHILDREN:
        setattr(made, child, _module(f"{name}.{child}"))
    return made


def extension_module(name: str) -> ModuleType:
    """One of torchair's extension modules, for GE graphs; it can be imported, told a log, and shut down."""
    soc = DEVICE_NAME.split(maxsplit=1)[0]
    # GE's own log, with TORCH_COMPILE_DEBUG=1.
    return _module(
        name, {"FinalizeGraphEngine": nothing, "SetDebugLogPath": nothing, "GetSocName": lambda: soc}
    )


def _module(name: str, content: dict[str, Any] | None = None, absent: tuple[str, ...] = ()) -> ModuleType:
    """A module whose other names, but for ``absent`` ones, are not emulated."""

    def find(attribute: str) -> NotNative:
        if attribute.startswith("__") or attribute in absent:
            raise AttributeError(attribute)
        return NotNative(f"{name}.{attribute}")

    made: Any = ModuleType(name)
    made.__dict__.update(content or {}, __getattr__=find)
    return made  # type: ignore[no-any-return]


def _devices(device: Device) -> dict[str, Any]:
    """Selecting devices and streams; and facts about them."""

    def select(index: int) -> int:
        if not 0 <= index < device.num_devices:
            msg = f"Invalid device ID {index} (error 107001): {device.num_devices} devices are visible"
            raise RuntimeError(msg)
        before, device.index = device.index, index
        return before

    def use_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
        del device_type
        device.current_streams[device_index] = stream_id

    def current_stream(index: int) -> tuple[int, int, int]:
        index = device.index if index < 0 else index
        return device.current_stream(index), index, DEVICE_TYPE

    free = SimpleNamespace(free_memory=_MEMORY_BYTES, total_memory=_MEMORY_BYTES)
    return {
        "_NPUStreamBase": type("_NPUStreamBase", (StreamBase,), {"emulated": device}),
        "_NPUEventBase": type("_NPUEventBase", (EventBase,), {"emulated": device}),
        "_NPUGraph": type("_NPUGraph", (Graph,), {"device": device}),
        "_graph_pool_handle": device.graph_pool_handle,
        "_npu_isCurrentStreamCapturing": lambda: device.is_capturing,
        "_super_kernel_scope_begin": nothing,
        "_super_kernel_scope_end": nothing,
        "_npu_init": nothing,
        "_npu_set_run_yet_variable_to_false": nothing,
        "_npu_getDeviceCount": lambda: device.num_devices,
        "_npu_getDevice": lambda: device.index,
        "_npu_getDeviceWithoutSet": lambda: device.index,
        "_npu_getLocalDevice": lambda: device.index,
        "_npu_setDevice": select,
        "_npu_maybeExchangeDevice": lambda index: select(index) if index >= 0 else device.index,
        "_npu_synchronize": device.wait,
        "_npu_setStream": use_stream,
        "_npu_getCurrentStream": current_stream,
        "_npu_getDefaultStream": lambda index: (0, device.index if index < 0 else index, DEVICE_TYPE),
        "_npu_eraseStream": nothing,
        "_npu_getDeviceName": lambda *_: DEVICE_NAME,
        "_npu_getDeviceProperties": lambda *_: SimpleNamespace(**_PROPERTIES),
        "_npu_getDeviceMemories": lambda *_: free,
        "_npu_getDeviceUtilizationRate": lambda *_: 0,
        "_npu_canDeviceAccessPeer": lambda *_: True,
        "_npu_get_soc_version": lambda: _SOC_VERSION,
        "_npu_is_bf16_supported": lambda: True,
        "_npu_is_support_inf_nan": lambda: True,
    }


def _memory(device: Device) -> dict[str, Any]:
    """The allocator, and tensors over addresses."""

    def stats(*_: Any) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": device.allocated, "peak": device.peak}}}

    def reset_peak(*_: Any) -> None:
        device.peak = device.allocated

    def set_state(_: int, state: Any, stale: list[int], __: list[int]) -> None:
        del stale  # whoever still holds memory that is taken away here gives back what is no longer its own
        pool, uses = state
        device.memory_of(pool).restore(uses)

    def storage_at(address: int, _: Any, size_bytes: int) -> Any:
        return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), size_bytes)

    def tensor_over(metadata: Any, storage: Any) -> torch.Tensor:
        with torch.inference_mode(mode=False), torch.no_grad():
            made = torch.empty(0, dtype=metadata["dtype"])
            return made.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])

    return {
        "_npu_emptyCache": device.empty_cache,
        "_npu_hostEmptyCache": nothing,
        "_npu_emptyVirtAddrCache": nothing,
        "_npu_memoryStats": stats,
        "_npu_hostMemoryStats": stats,
        "_npu_resetPeakMemoryStats": reset_peak,
        "_npu_resetPeakHostMemoryStats": nothing,
        "_npu_resetAccumulatedMemoryStats": nothing,
        "_npu_memorySnapshot": lambda pool: {"segments": device.snapshot(pool)},
        "_npu_getAllocatorBackend": lambda: "native",
        "_npu_getCheckpointState": lambda _, pool: (pool, device.checkpoint(pool)),
        "_npu_setCheckpointPoolState": set_state,
        "_npu_endAllocateToPool": lambda _, pool: device.unstick(pool),
        "_npu_setMemoryFraction": nothing,
        "_npu_getMemoryFraction": lambda *_: 1.0,
        "_construct_storage_from_data_pointer": storage_at,
        "_construct_NPU_Tensor_From_Storage_And_Metadata": tensor_over,
        "_weak_ref_tensor": lambda tensor: borrowed([tensor], None)[0],
        "_tensors_data_ptrs_at_indices_equal": lambda tensors, addresses, indices: all(
            tensors[index].data_ptr() == addresses[index] for index in indices
        ),
    }


def _settings() -> dict[str, Any]:
    """The settings of a process."""
    options: dict[str, str] = {}
    values: dict[str, Any] = {}
    cores = [CUBE_CORES, VECTOR_CORES]
    limits: dict[tuple[int, int, int], int] = {}

    def pair(name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        return lambda: values[name], lambda value: values.update({name: value})

    def option(name: str) -> bytes | None:
        value = options.get(name)
        return None if value is None else value.encode()

    # Streams are told by name; ``type`` is 0 for cube cores, 1 for vector cores.

    def limit(**given: int) -> int:
        place = given["device_index"], given["stream_id"], given["type"]
        return limits.get(place, cores[given["type"]])

    def set_limit(**given: int) -> None:
        limits[given["device_index"], given["stream_id"], given["type"]] = given["value"]

    def reset_limits(**given: int) -> None:
        for kind in range(len(cores)):
            limits.pop((given["device_index"], given["stream_id"], kind), None)

    found: dict[str, Any] = {
        "_npu_setOption": options.update,
        "_npu_getOption": option,
        "_npu_is_jit_compile_false": lambda: options.get("jitCompile", "disable") == "disable",
        "_npu_get_device_res_limit": lambda _, kind: cores[kind],
        "_npu_set_device_res_limit": lambda _, kind, value: cores.__setitem__(kind, value),
        "_npu_get_stream_res_limit": limit,
        "_npu_set_stream_res_limit": set_limit,
        "_npu_reset_stream_res_limit": reset_limits,
        "_npu_set_op_timeout_ms": nothing,
        "_npu_sleep": nothing,
        "_get_cann_version": version_of,
        "_is_gte_cann_version": at_least,
    }
    for read, write, first in _VALUES:
        values[read] = first
        found[read], found[write] = pair(read)
    return found
