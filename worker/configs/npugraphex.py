"""``config.npugraphex_config``: the flat options of the backend that follows reduce-overhead mode."""

from __future__ import annotations

from worker.configs.options import (
    Choice,
    ExistingDirectory,
    Flag,
    Function,
    IntList,
    IntRange,
    PlainMapping,
    PoolHandle,
)
from worker.configs.section import Section


class NpuGraphEx(Section, at="npugraphex_config"):
    """Options of mode ``npugraph_ex``; in mode reduce-overhead use those under `config.debug`."""

    force_eager = Flag(False)
    """As ``debug.run_eagerly``."""

    use_graph_pool = PoolHandle(None)
    """As ``aclgraph_config.use_custom_pool``."""

    reuse_graph_pool_in_same_fx = Flag(True)
    """The opposite of ``debug.aclgraph.disable_mempool_reuse_in_same_fx``."""

    capture_limit = IntRange(64, 1)
    """As ``debug.aclgraph.static_capture_size_limit``."""

    clone_input = Flag(True)
    """As ``debug.aclgraph.clone_input``."""

    clone_output = Flag(False)
    """As ``debug.aclgraph.enable_output_clone``."""

    static_kernel_compile = Flag(False)
    """Compile kernels for the shapes that a graph is captured with."""

    super_kernel_optimize = Flag(False)
    """Join kernels within marked scopes into one."""

    super_kernel_optimize_options = PlainMapping(None)
    """Options of that joining."""

    super_kernel_debug_options = PlainMapping(None)
    """Options for finding faults in that joining."""

    frozen_parameter = Flag(False)
    """Treat the addresses of parameters as constants."""

    remove_noop_ops = Flag(True)
    """Drop operators that change nothing."""

    remove_cat_ops = Flag(True)
    """Let operators write their part of a concatenation in place."""

    inplace_pass = Flag(True)
    """Turn operators back into their in-place forms."""

    input_inplace_pass = Flag(True)
    """The same for operators that end in a copy into an input."""

    pattern_fusion_pass = Flag(True)
    """Replace known patterns of operators by fused ones."""

    post_grad_custom_pre_pass = Function(None)
    """A pass of the user's over the graph, before the built-in ones."""

    post_grad_custom_post_pass = Function(None)
    """A pass of the user's over the graph, after the built-in ones."""

    dump_tensor_data = Flag(False)
    """Dump every operator's data."""

    data_dump_stage = Choice("optimized", ("original", "optimized"))
    """Of the graph before or after its passes."""

    data_dump_dir = ExistingDirectory("./")
    """Where to."""

    _vllm_aclnn_static_kernel_sym_index = IntRange(0, 0)
    """Which symbol of the graph the range below speaks of."""

    _vllm_aclnn_static_kernel_sym_range = IntList(None)
    """Values of the symbol for which kernels are compiled; None means every value."""
