"""warmrank's worker: TorchAir's compile cache on every device kind.

Has TorchAir's shape, so that a script written for it runs with ``import worker as torchair``. Names are
imported when first used; ``import worker`` alone imports neither torch nor a tracer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker import inference
    from worker.capture.rooms import graph_pool_handle
    from worker.configs.compiler_config import CompilerConfig
    from worker.hcom import patch_for_hcom
    from worker.inference import get_backend, readable_cache
    from worker.inference import get_backend as get_npu_backend
    from worker.log import logger
    from worker.results import Verification
    from worker.runtime_state import declare_runtime_state
    from worker.workload import Call, RankContext, Workload

__all__ = [
    "Call",
    "CompilerConfig",
    "RankContext",
    "Verification",
    "Workload",
    "declare_runtime_state",
    "get_backend",
    "get_npu_backend",
    "graph_pool_handle",
    "inference",
    "logger",
    "patch_for_hcom",
    "readable_cache",
]

_HOMES = {
    "Call": ("worker.workload", "Call"),
    "CompilerConfig": ("worker.configs.compiler_config", "CompilerConfig"),
    "RankContext": ("worker.workload", "RankContext"),
    "Verification": ("worker.results", "Verification"),
    "Workload": ("worker.workload", "Workload"),
    "declare_runtime_state": ("worker.runtime_state", "declare_runtime_state"),
    "get_backend": ("worker.inference", "get_backend"),
    "get_npu_backend": ("worker.inference", "get_backend"),
    "graph_pool_handle": ("worker.capture.rooms", "graph_pool_handle"),
    "inference": ("worker.inference", ""),
    "logger": ("worker.log", "logger"),
    "patch_for_hcom": ("worker.hcom", "patch_for_hcom"),
    "readable_cache": ("worker.inference", "readable_cache"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'worker' has no attribute {name!r}"
        raise AttributeError(msg)
    module_name, attribute = _HOMES[name]
    module = importlib.import_module(module_name)
    return getattr(module, attribute) if attribute else module


def __dir__() -> list[str]:
    return sorted(__all__)
