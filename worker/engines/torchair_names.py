"""How TorchAir names, splits and refuses what `CompilerConfig` offers; read from torch_npu 2.13.

Options that are not named here have the same dotted name in ``torchair.CompilerConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmrank.worker.values import Value

FLAT = {
    "aclgraph_config.use_custom_pool": "use_graph_pool",
    "debug.aclgraph.clone_input": "clone_input",
    "debug.aclgraph.disable_mempool_reuse_in_same_fx": "reuse_graph_pool_in_same_fx",
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": "inplace_pass",
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": "input_inplace_pass",
    "debug.aclgraph.enable_output_clone": "clone_output",
    "debug.aclgraph.remove_cat_ops": "remove_cat_ops",
    "debug.aclgraph.static_capture_size_limit": "capture_limit",
    "debug.deadlock_check": "deadlock_check",
    "debug.run_eagerly": "force_eager",
    "dump_config.data_dump_stage": "data_dump_stage",
    "dump_config.dump_path": "data_dump_dir",
    "dump_config.enable_dump": "dump_tensor_data",
    "experimental_config.aclgraph._aclnn_static_shape_kernel": "static_kernel_compile",
    "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index": (
        "_vllm_aclnn_static_kernel_sym_index"
    ),
    "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range": (
        "_vllm_aclnn_static_kernel_sym_range"
    ),
    "experimental_config.aclgraph._super_kernel_debug_options": "super_kernel_debug_options",
    "experimental_config.aclgraph._super_kernel_optimize": "super_kernel_optimize",
    "experimental_config.aclgraph._super_kernel_optimize_options": "super_kernel_optimize_options",
    "experimental_config.frozen_parameter": "frozen_parameter",
    "experimental_config.pattern_fusion_pass": "pattern_fusion_pass",
    "experimental_config.remove_noop_ops": "remove_noop_ops",
}
"""Our name -> name in ``npugraph_ex.CompilerConfig``, of options that both forms of TorchAir's have."""

INVERTED = frozenset({"reuse_graph_pool_in_same_fx", "inplace_pass", "input_inplace_pass"})
"""Names in ``npugraph_ex.CompilerConfig`` that mean the opposite of what `FLAT` maps to them."""

OURS_ALONE: Mapping[str, tuple[str, ...]] = {
    "inference_config.dynamic_gears_merge_policy": ("reduce-overhead", "npugraph_ex"),
}
"""Our name -> modes in which this package does it, and TorchAir has nothing to do with it."""

_GRAPH = 'engine="graph" does it'


class Refusal(Value):
    """Options that TorchAir has, and of which nothing good comes.

    Attributes:
        mode: in which it is so.
        values: TorchAir's name -> value; all have to be set so.
        remedy: what to do instead.
        why: what TorchAir does then.
        always: whether it is so even where nothing is to be kept.
    """

    mode: str
    values: Mapping[str, Any]
    remedy: str
    why: str = "TorchAir keeps nothing that it compiles so"
    always: bool = False


REFUSED = (
    Refusal(
        mode="max-autotune",
        values={"debug.run_eagerly": True},
        remedy=f"{_GRAPH}, as does config.mode = 'reduce-overhead'",
    ),
    Refusal(
        mode="max-autotune",
        values={"debug.data_dump.type": "npy"},
        remedy=f"{_GRAPH}, and config.dump_config.enable_dump dumps from the compiled graph",
    ),
    Refusal(
        mode="max-autotune",
        values={"debug.fx_summary.type": "csv", "debug.fx_summary.skip_compile": True},
        remedy="set config.debug.fx_summary.skip_compile = False",
    ),
    Refusal(
        mode="max-autotune",
        values={"export.export_mode": True},
        remedy="call torchair.dynamo_export",
    ),
    Refusal(
        mode="max-autotune",
        values={"experimental_config.enable_ref_data": True},
        remedy="leave it at its default",
    ),
    Refusal(
        mode="max-autotune",
        values={"aoe_config.aoe_mode": "2"},
        remedy="tune without a cache, through warmrank.get_npu_backend",
    ),
    *(
        Refusal(
            mode=mode,
            values={"experimental_config.npu_fx_pass": True},
            why="TorchAir runs these passes only over graphs that it does not keep",
            remedy="leave it at its default",
        )
        for mode in ("max-autotune", "reduce-overhead")
    ),
    Refusal(
        mode="reduce-overhead",
        values={"debug.data_dump.type": "npy"},
        remedy=f"{_GRAPH}, and config.dump_config.enable_dump dumps from the captured graph",
    ),
    Refusal(
        mode="reduce-overhead",
        values={"debug.fx_summary.type": "csv"},
        why="TorchAir writes none in this mode",
        always=True,
        remedy=_GRAPH,
    ),
    *(
        Refusal(
            mode="reduce-overhead",
            values={"debug.graph_dump.type": form},
            why="TorchAir writes only 'py' in this mode",
            always=True,
            remedy="set config.debug.graph_dump.type = 'py'",
        )
        for form in ("txt", "pbtxt")
    ),
    Refusal(
        mode="reduce-overhead",
        values={"dump_config.enable_dump": True, "dump_config.data_dump_stage": "original"},
        remedy="set config.dump_config.data_dump_stage = 'optimized'",
    ),
    Refusal(
        mode="npugraph_ex",
        values={"dump_tensor_data": True, "data_dump_stage": "original"},
        remedy="set config.npugraphex_config.data_dump_stage = 'optimized'",
    ),
    Refusal(
        mode="npugraph_ex",
        values={"dump_tensor_data": True, "force_eager": True},
        remedy="set one of the two",
    ),
)
"""What is refused."""
