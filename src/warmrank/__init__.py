"""warmrank: every rank starts warm. The library's face, in TorchAir's shape.

A script written for TorchAir runs with ``import warmrank as torchair``. Names are imported when first used;
``import warmrank`` alone imports neither torch nor a tracer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmrank import configs, inference
    from warmrank.inference import get_backend, readable_cache
    from warmrank.inference import get_backend as get_npu_backend
    from warmrank.worker.capture.captures import graph_pool_handle
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.groups import declare_groups
    from warmrank.worker.log import logger
    from warmrank.worker.rank.workload import Call, RankContext, Workload
    from warmrank.worker.results import Verification
    from warmrank.worker.runtime.runtime_state import declare_runtime_state
    from warmrank.worker.torchair_scope import patch_for_hcom

__all__ = [
    "Call",
    "CompilerConfig",
    "RankContext",
    "Verification",
    "Workload",
    "configs",
    "declare_groups",
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
    "Call": ("warmrank.worker.rank.workload", "Call"),
    "CompilerConfig": ("warmrank.worker.configs.compiler_config", "CompilerConfig"),
    "RankContext": ("warmrank.worker.rank.workload", "RankContext"),
    "Verification": ("warmrank.worker.results", "Verification"),
    "Workload": ("warmrank.worker.rank.workload", "Workload"),
    "configs": ("warmrank.configs", ""),
    "declare_groups": ("warmrank.worker.groups", "declare_groups"),
    "declare_runtime_state": ("warmrank.worker.runtime.runtime_state", "declare_runtime_state"),
    "get_backend": ("warmrank.inference", "get_backend"),
    "get_npu_backend": ("warmrank.inference", "get_backend"),
    "graph_pool_handle": ("warmrank.worker.capture.captures", "graph_pool_handle"),
    "inference": ("warmrank.inference", ""),
    "logger": ("warmrank.worker.log", "logger"),
    "patch_for_hcom": ("warmrank.worker.torchair_scope", "patch_for_hcom"),
    "readable_cache": ("warmrank.inference", "readable_cache"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'warmrank' has no attribute {name!r}")
    module_name, attribute = _HOMES[name]
    module = importlib.import_module(module_name)
    return getattr(module, attribute) if attribute else module


def __dir__() -> list[str]:
    return sorted(__all__)
