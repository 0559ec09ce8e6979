"""What stands in for ``torch_npu._C`` and for torchair's extension modules.

Names and arguments are those that the real Python of torch_npu 2.13 calls. What is not emulated says so by
name when it is used.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from warmrank.worker.npu_emulator.device import Device
from warmrank.worker.npu_emulator.missing import missing_attributes, nothing
from warmrank.worker.npu_emulator.native_devices import DEVICE_NAME, DeviceFunctions
from warmrank.worker.npu_emulator.native_memory import MemoryFunctions
from warmrank.worker.npu_emulator.native_settings import SettingFunctions

_CHILDREN = ("_cd", "_logging", "_flops_count", "_profiler", "_distributed_c10d", "_npurt", "_mstx")
# Real Python makes a class of its own where the native one is missing.
_ABSENT = ("_MemPool", "_npu_NPUAllocator")


def native_module(device: Device) -> ModuleType:
    """``torch_npu._C``, with its children."""
    made: Any = ModuleType("torch_npu._C")
    made.__path__ = []
    made.__dict__.update(DeviceFunctions(device).table())
    made.__dict__.update(MemoryFunctions(device).table())
    made.__dict__.update(SettingFunctions().table())
    for child in _CHILDREN:
        name = f"torch_npu._C.{child}"
        inner: Any = ModuleType(name)
        inner.__getattr__ = missing_attributes(name)
        setattr(made, child, inner)
    made.__getattr__ = missing_attributes("torch_npu._C", _ABSENT)
    return made  # type: ignore[no-any-return]


def extension_module(name: str) -> ModuleType:
    """One of torchair's extension modules, for GE graphs; it can be imported, told a log, and shut down."""
    made: Any = ModuleType(name)
    made.FinalizeGraphEngine = made.SetDebugLogPath = nothing  # GE's own log, with TORCH_COMPILE_DEBUG=1
    made.GetSocName = lambda: DEVICE_NAME.split(maxsplit=1)[0]
    made.__getattr__ = missing_attributes(name)
    return made  # type: ignore[no-any-return]
