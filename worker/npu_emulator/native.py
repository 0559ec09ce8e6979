"""What stands in for ``torch_npu._C``: the functions that the real Python of torch_npu calls.

Names and arguments are those of torch_npu 2.13. A function that is not emulated says so by name when it is
called.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from worker.errors import NotEmulated
from worker.npu_emulator.cann import at_least, version_of
from worker.npu_emulator.device import Device
from worker.npu_emulator.graph import Graph
from worker.npu_emulator.streams import DEVICE_TYPE, EventBase, StreamBase
from worker.torch_private.graph_memory import borrowed, storage_at

DEVICE_NAME = "Ascend910B2 (emulated)"
SOC_VERSION = 221  # SocVersion::Ascend910B2 in torch_npu/csrc/core/npu/NpuVariables.h
CUBE_CORES, VECTOR_CORES = 24, 48
MEMORY_BYTES = 64 << 30
CHILDREN = ("_cd", "_logging", "_flops_count", "_profiler", "_distributed_c10d", "_npurt", "_mstx")
# Real Python makes a class of its own where the native one is missing.
_ABSENT = ("_MemPool", "_npu_NPUAllocator")


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
        """Refuse.

        Raises:
            NotEmulated: always; it names what was used.
        """
        msg = (
            f"{self._name} is native code of the NPU, which the emulator does not stand in for. Run this on "
            "an NPU, or leave out what needs it."
        )
        raise NotEmulated(msg, name=self._name)

    def __repr__(self) -> str:
        return f"<not emulated: {self._name}>"


def missing_attributes(module: str, absent: tuple[str, ...] = ()) -> Callable[[str], NotNative]:
    """A module's ``__getattr__`` for native names."""

    def find(name: str) -> NotNative:
        if name.startswith("__") or name in absent:
            raise AttributeError(name)
        return NotNative(f"{module}.{name}")

    return find


def native_module(device: Device) -> ModuleType:
    """``torch_npu._C``, with its children."""
    made: Any = ModuleType("torch_npu._C")
    made.__path__ = []
    made.__dict__.update(_classes(device) | _devices(device) | _memory(device) | _settings())
    for child in CHILDREN:
        name = f"torch_npu._C.{child}"
        inner: Any = ModuleType(name)
        inner.__getattr__ = missing_attributes(name)
        setattr(made, child, inner)
    made.__getattr__ = missing_attributes("torch_npu._C", _ABSENT)
    return made  # type: ignore[no-any-return]


def extension_module(name: str) -> ModuleType:
    """One of torchair's extension modules, which are for GE graphs; it can be imported and shut down."""
    made: Any = ModuleType(name)
    made.FinalizeGraphEngine = _nothing
    made.GetSocName = lambda: DEVICE_NAME.split(maxsplit=1)[0]
    made.__getattr__ = missing_attributes(name)
    return made  # type: ignore[no-any-return]


def _classes(device: Device) -> dict[str, Any]:
    return {
        "_NPUStreamBase": type("_NPUStreamBase", (StreamBase,), {"emulated": device}),
        "_NPUEventBase": type("_NPUEventBase", (EventBase,), {"emulated": device}),
        "_NPUGraph": type("_NPUGraph", (Graph,), {"device": device}),
        "_graph_pool_handle": device.graph_pool_handle,
        "_npu_isCurrentStreamCapturing": lambda: device.is_capturing,
        "_super_kernel_scope_begin": _nothing,
        "_super_kernel_scope_end": _nothing,
    }


def _devices(device: Device) -> dict[str, Any]:
    def select(index: int) -> int:
        if not 0 <= index < device.num_devices:
            msg = f"Invalid device ID {index} (error 107001): {device.num_devices} devices are visible"
            raise RuntimeError(msg)
        before, device.index = device.index, index
        return before

    def use_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
        del device_type
        device.current_streams[device_index] = stream_id

    def current(index: int) -> tuple[int, int, int]:
        index = device.index if index < 0 else index
        return device.current_stream(index), index, DEVICE_TYPE

    properties = SimpleNamespace(
        name=DEVICE_NAME,
        total_memory=MEMORY_BYTES,
        L2_cache_size=192 << 20,
        cube_core_num=CUBE_CORES,
        vector_core_num=VECTOR_CORES,
        uuid="emulated",
    )
    return {
        "_npu_init": _nothing,
        "_npu_set_run_yet_variable_to_false": _nothing,
        "_npu_getDeviceCount": lambda: device.num_devices,
        "_npu_getDevice": lambda: device.index,
        "_npu_getDeviceWithoutSet": lambda: device.index,
        "_npu_getLocalDevice": lambda: device.index,
        "_npu_setDevice": select,
        "_npu_maybeExchangeDevice": lambda index: select(index) if index >= 0 else device.index,
        "_npu_synchronize": device.wait,
        "_npu_setStream": use_stream,
        "_npu_getCurrentStream": current,
        "_npu_getDefaultStream": lambda index: (0, device.index if index < 0 else index, DEVICE_TYPE),
        "_npu_getDeviceName": lambda *_: DEVICE_NAME,
        "_npu_getDeviceProperties": lambda *_: properties,
        "_npu_getDeviceMemories": lambda *_: SimpleNamespace(
            free_memory=MEMORY_BYTES, total_memory=MEMORY_BYTES
        ),
        "_npu_getDeviceUtilizationRate": lambda *_: 0,
        "_npu_canDeviceAccessPeer": lambda *_: True,
        "_npu_get_soc_version": lambda: SOC_VERSION,
        "_npu_is_bf16_supported": lambda: True,
        "_npu_is_support_inf_nan": lambda: True,
    }


def _memory(device: Device) -> dict[str, Any]:
    def stats(*_: Any) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": device.allocated, "peak": device.peak}}}

    def reset_peak(*_: Any) -> None:
        device.peak = device.allocated

    def set_state(_: int, state: Any, stale: list[int], __: list[int]) -> None:
        del stale  # whoever still holds memory that is taken away here gives back what is no longer its own
        pool, uses = state
        device.memory_of(pool).restore(uses)

    def tensor_over(metadata: Any, storage: Any) -> torch.Tensor:
        with torch.inference_mode(mode=False), torch.no_grad():
            made = torch.empty(0, dtype=metadata["dtype"])
            return made.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])

    return {
        "_npu_emptyCache": device.empty_cache,
        "_npu_hostEmptyCache": _nothing,
        "_npu_emptyVirtAddrCache": _nothing,
        "_npu_memoryStats": stats,
        "_npu_hostMemoryStats": stats,
        "_npu_resetPeakMemoryStats": reset_peak,
        "_npu_resetPeakHostMemoryStats": reset_peak,
        "_npu_resetAccumulatedMemoryStats": _nothing,
        "_npu_memorySnapshot": lambda pool: {"segments": device.snapshot(pool)},
        "_npu_getAllocatorBackend": lambda: "native",
        "_npu_getCheckpointState": lambda _, pool: (pool, device.checkpoint(pool)),
        "_npu_setCheckpointPoolState": set_state,
        "_npu_endAllocateToPool": lambda _, pool: device.unstick(pool),
        "_npu_setMemoryFraction": _nothing,
        "_npu_getMemoryFraction": lambda *_: 1.0,
        "_construct_storage_from_data_pointer": storage_at,
        "_construct_NPU_Tensor_From_Storage_And_Metadata": tensor_over,
        "_weak_ref_tensor": lambda tensor: borrowed([tensor], None)[0],
        "_tensors_data_ptrs_at_indices_equal": lambda tensors, addresses, indices: all(
            tensors[index].data_ptr() == addresses[index] for index in indices
        ),
    }


def _settings() -> dict[str, Any]:
    options: dict[str, str] = {}
    cores = [CUBE_CORES, VECTOR_CORES]
    limits: dict[tuple[int, int, int], int] = {}
    state = {"deterministic": 0, "autocast": False, "autocast_dtype": torch.float16, "sync": 0, "queue": 1}

    def stream_limit(*, stream_id: int, device_index: int, device_type: int, type: int) -> int:  # noqa: A002
        del device_type
        return limits.get((device_index, stream_id, type), cores[type])

    def limit_stream(
        *,
        stream_id: int,
        device_index: int,
        device_type: int,
        type: int,  # noqa: A002 - the native name
        value: int,
    ) -> None:
        del device_type
        limits[device_index, stream_id, type] = value

    def unlimit_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
        del device_type
        for kind in range(len(cores)):
            limits.pop((device_index, stream_id, kind), None)

    def option(name: str) -> bytes | None:
        value = options.get(name)
        return None if value is None else value.encode()

    def getter(name: str) -> Callable[[], Any]:
        return lambda: state[name]

    def setter(name: str) -> Callable[[Any], None]:
        return lambda value: state.update({name: value})

    return {
        "_npu_setOption": options.update,
        "_npu_getOption": option,
        "_npu_is_jit_compile_false": lambda: options.get("jitCompile", "disable") == "disable",
        "_npu_get_deterministic_level": getter("deterministic"),
        "_npu_set_deterministic_level": setter("deterministic"),
        "is_autocast_enabled": getter("autocast"),
        "set_autocast_enabled": setter("autocast"),
        "get_autocast_dtype": getter("autocast_dtype"),
        "set_autocast_dtype": setter("autocast_dtype"),
        "_npu_get_sync_debug_mode": getter("sync"),
        "_npu_set_sync_debug_mode": setter("sync"),
        "_npu_get_task_queue_enable": getter("queue"),
        "_npu_set_task_queue_enable": setter("queue"),
        "_npu_get_device_res_limit": lambda _, kind: cores[kind],
        "_npu_set_device_res_limit": lambda _, kind, value: cores.__setitem__(kind, value),
        "_npu_get_stream_res_limit": stream_limit,
        "_npu_set_stream_res_limit": limit_stream,
        "_npu_reset_stream_res_limit": unlimit_stream,
        "_npu_set_op_timeout_ms": _nothing,
        "_npu_sleep": _nothing,
        "_get_cann_version": version_of,
        "_is_gte_cann_version": at_least,
        "_npu_eraseStream": _nothing,
    }


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing follows from it here."""
