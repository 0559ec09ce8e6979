"""Runs a tiny module of vLLM's, compiled by vllm-ascend, and writes its figures: ``ascend_child.py OUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FUSIONS = ("fuse_norm_quant", "fuse_qknorm_rope", "fuse_allreduce_rms", "fuse_muls_add")


def main() -> None:
    import torch
    from vllm.compilation.counter import compilation_counter
    from vllm.compilation.decorators import support_torch_compile
    from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm_ascend.compilation.compiler_interface import AscendCompiler
    from vllm_ascend.utils import enable_custom_op

    num_compiled = 0
    original = AscendCompiler.compile

    def compile_(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_compiled
        num_compiled += 1
        return original(self, *args, **kwargs)

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
    Path(sys.argv[1]).write_text(json.dumps({"num_compiled": num_compiled, "num_aot_loaded": loaded}))


if __name__ == "__main__":
    main()
