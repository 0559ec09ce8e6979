"""A vLLM plugin: vllm-ascend's `AscendCompiler` on a CPU, whose tensors count as an emulated NPU's."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

COMPILER = "vllm_ascend.compilation.compiler_interface.AscendCompiler"


def register() -> None:
    from vllm.config import CompilationMode
    from vllm.config.compilation import PassConfig
    from vllm.platforms.cpu import CpuPlatform

    importlib.import_module("torch_npu")  # the emulated one
    if getattr(CpuPlatform, "is_like_npus", False):
        return
    CpuPlatform.is_like_npus = True
    if os.environ.get("WITH_CUSTOM_OPERATORS"):  # in place of libraries that need CANN
        for name in ("vllm_ascend_C", "meta_registration"):
            sys.modules[f"vllm_ascend.{name}"] = ModuleType(f"vllm_ascend.{name}")
    PassConfig.enable_sp = False  # vllm-ascend 0.23 reads it, and vLLM 0.32 has it no more
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.platform import NPUPlatform

    downgrade = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        mode = vllm_config.compilation_config.mode
        downgrade(cls, vllm_config)
        init_ascend_config(vllm_config)
        if mode == CompilationMode.VLLM_COMPILE:
            vllm_config.compilation_config.mode = mode
            vllm_config.compilation_config.backend = COMPILER
            vllm_config.compilation_config.compile_sizes = []

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    for name in ("get_compile_backend", "get_pass_manager_cls", "pass_key"):
        setattr(CpuPlatform, name, vars(NPUPlatform)[name])
    _without_bundled_caches()


def _without_bundled_caches() -> None:
    """As pull request 15545 of vllm-ascend: torch 2.13 keeps what inductor compiled, and nothing else."""
    import torch
    from vllm_ascend.compilation import compiler_interface

    off = {f"{name}_autograd_cache": False for name in ("enable", "bundled", "force", "strict")}
    patched = torch._functorch.config.patch(off)
    compiler_interface.npugraph_ex_compile = patched(compiler_interface.npugraph_ex_compile)
