"""Runs a tiny module of vLLM's, compiled by vllm-ascend on an emulated NPU: ``ascend_child.py OUT``."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FUSIONS = ("fuse_norm_quant", "fuse_qknorm_rope", "fuse_allreduce_rms", "fuse_muls_add")
COMPILER = "vllm_ascend.compilation.compiler_interface.AscendCompiler"


def compile_as_on_an_npu() -> None:
    """Have vLLM's CPU platform compile by `AscendCompiler`: its tensors count as the emulated NPU's."""
    import torch
    from vllm.config.compilation import PassConfig
    from vllm.platforms.cpu import CpuPlatform

    importlib.import_module("torch_npu")
    if os.environ.get("WITH_CUSTOM_OPERATORS"):  # in place of libraries that need CANN
        for name in ("vllm_ascend.vllm_ascend_C", "vllm_ascend.meta_registration"):
            sys.modules[name] = ModuleType(name)
    PassConfig.enable_sp = False  # vllm-ascend 0.23 reads it, and vLLM 0.32 has it no more
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.compilation import compiler_interface
    from vllm_ascend.platform import NPUPlatform

    downgrade = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        mode = vllm_config.compilation_config.mode
        downgrade(cls, vllm_config)
        vllm_config.compilation_config.mode = mode
        vllm_config.compilation_config.backend = COMPILER
        vllm_config.compilation_config.compile_sizes = []
        init_ascend_config(vllm_config)

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    for name in ("get_compile_backend", "get_pass_manager_cls", "pass_key"):
        setattr(CpuPlatform, name, vars(NPUPlatform)[name])
    # As pull request 15545 of vllm-ascend: torch 2.13 keeps what inductor compiled, and nothing else.
    off = {f"{name}_autograd_cache": False for name in ("enable", "bundled", "force", "strict")}
    patched = torch._functorch.config.patch(off)
    compiler_interface.npugraph_ex_compile = patched(compiler_interface.npugraph_ex_compile)


def main() -> None:
    import torch
    from vllm.compilation.counter import compilation_counter
    from vllm.compilation.decorators import support_torch_compile
    from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    compile_as_on_an_npu()
    from vllm_ascend.compilation.compiler_interface import AscendCompiler
    from vllm_ascend.utils import enable_custom_op

    compiled: list[str] = []
    original = AscendCompiler.compile

    def compile_(self: Any, *args: Any) -> Any:
        compiled.append(args[-1])
        return original(self, *args)

    AscendCompiler.compile = compile_

    @support_torch_compile(dynamic_arg_dims={"x": 0})
    class Norm(torch.nn.Module):
        """As vllm-ascend's layers: the operator that is traced depends on what is in force."""

        def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(1.0, 9.0))
            self.has_custom = enable_custom_op()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.has_custom:
                normed: torch.Tensor = torch.ops.npu.npu_rms_norm(x, self.weight, 1e-6)[0]
                return normed
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    config = VllmConfig(
        compilation_config=CompilationConfig(mode=CompilationMode.VLLM_COMPILE),
        additional_config={"ascend_compilation_config": dict.fromkeys(FUSIONS, False)},  # they want a model
    )
    x = torch.arange(32.0).reshape(4, 8)
    with set_current_vllm_config(config), torch.inference_mode():
        module = Norm(vllm_config=config)
        with set_forward_context(None, config):
            found = [module(x), module(x[:3])]
    expected = torch.nn.functional.rms_norm(x, (8,), module.weight, 1e-6)
    torch.testing.assert_close(found, [expected, expected[:3]])
    loaded = compilation_counter.num_aot_artifacts_loaded
    Path(sys.argv[1]).write_text(json.dumps({"num_compiled": len(compiled), "num_aot_loaded": loaded}))


if __name__ == "__main__":
    main()
