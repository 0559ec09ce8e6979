"""A vLLM plugin that gives a CPU the compile mode of GPUs, whose artifacts vLLM can load again."""

from __future__ import annotations

from typing import Any


def register() -> None:
    from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    if getattr(CpuPlatform, "is_like_gpus", False):
        return
    CpuPlatform.is_like_gpus = True
    downgrade = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        mode = vllm_config.compilation_config.mode
        downgrade(cls, vllm_config)
        if mode == CompilationMode.VLLM_COMPILE:
            vllm_config.compilation_config.mode = mode
            vllm_config.compilation_config.backend = "inductor"
            vllm_config.compilation_config.compile_sizes = []

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    FixFunctionalizationPass.__call__ = lambda self, graph: None
