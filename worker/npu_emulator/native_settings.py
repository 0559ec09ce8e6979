"""Native functions of torch_npu for settings: options, limits of cores, autocast, versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warmrank.worker.npu_emulator.cann import at_least, version_of
from warmrank.worker.npu_emulator.missing import nothing

CUBE_CORES, VECTOR_CORES = 24, 48
# Function that reads a value, function that sets it, value at first.
_VALUES = (
    ("_npu_get_deterministic_level", "_npu_set_deterministic_level", 0),
    ("is_autocast_enabled", "set_autocast_enabled", False),
    ("get_autocast_dtype", "set_autocast_dtype", torch.float16),
    ("_npu_get_sync_debug_mode", "_npu_set_sync_debug_mode", 0),
    ("_npu_get_task_queue_enable", "_npu_set_task_queue_enable", 1),
)


class SettingFunctions:
    """The settings of a process."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}
        self._cores = [CUBE_CORES, VECTOR_CORES]
        self._limits: dict[tuple[int, int, int], int] = {}
        self._values: dict[str, Any] = {}

    def table(self) -> dict[str, Any]:
        """Name in ``torch_npu._C`` -> what stands there."""
        found: dict[str, Any] = {}
        for read, write, first in _VALUES:
            self._values[read] = first
            found[read], found[write] = self._reader(read), self._writer(read)
        return found | {
            "_npu_setOption": self._options.update,
            "_npu_getOption": self._option,
            "_npu_is_jit_compile_false": lambda: self._options.get("jitCompile", "disable") == "disable",
            "_npu_get_device_res_limit": lambda _, kind: self._cores[kind],
            "_npu_set_device_res_limit": lambda _, kind, value: self._cores.__setitem__(kind, value),
            "_npu_get_stream_res_limit": self._limit,
            "_npu_set_stream_res_limit": self._set_limit,
            "_npu_reset_stream_res_limit": self._reset_limits,
            "_npu_set_op_timeout_ms": nothing,
            "_npu_sleep": nothing,
            "_get_cann_version": version_of,
            "_is_gte_cann_version": at_least,
        }

    def _reader(self, name: str) -> Callable[[], Any]:
        return lambda: self._values[name]

    def _writer(self, name: str) -> Callable[[Any], None]:
        return lambda value: self._values.update({name: value})

    def _option(self, name: str) -> bytes | None:
        value = self._options.get(name)
        return None if value is None else value.encode()

    # Streams are told by name; ``type`` is 0 for cube cores, 1 for vector cores.

    def _limit(self, **given: int) -> int:
        return self._limits.get(
            (given["device_index"], given["stream_id"], given["type"]), self._cores[given["type"]]
        )

    def _set_limit(self, **given: int) -> None:
        self._limits[given["device_index"], given["stream_id"], given["type"]] = given["value"]

    def _reset_limits(self, **given: int) -> None:
        for kind in range(len(self._cores)):
            self._limits.pop((given["device_index"], given["stream_id"], kind), None)
