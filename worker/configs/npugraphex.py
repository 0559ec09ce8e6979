"""``config.npugraphex_config``: the flat options of the backend that follows reduce-overhead mode."""

from __future__ import annotations

from warmrank.worker.configs.effects import ASCEND_FLAT, EVERY_MODE, Effect
from warmrank.worker.configs.options import (
    Choice,
    ExistingDirectory,
    Flag,
    Function,
    IntList,
    IntRange,
    PlainMapping,
    PoolHandle,
)
from warmrank.worker.configs.section import Section

# It has no other name, so mode reduce-overhead obeys it too.
_CAPTURE_TOO = Effect(modes=("reduce-overhead", "npugraph_ex"))


class NpuGraphEx(Section, at="npugraphex_config", effect=ASCEND_FLAT):
    """Options of mode ``npugraph_ex``; in mode reduce-overhead use those under `config.debug`."""

    force_eager = Flag(False, effect=EVERY_MODE)
    """As ``debug.run_eagerly``."""

    force_recapture = Flag(False, effect=_CAPTURE_TOO)
    """Capture anew on every call."""

    capture_error_mode = Choice("global", ("global", "thread_local", "relaxed"))
    """Which calls of other threads a running capture forbids."""

    unsafe_skip_npugraph_capture_validation = Flag(False)
    """Do not look whether what was captured can be replayed."""

    record_statistics_debug_info = Flag(False)
    """Note statistics of captures and replays."""

    deadlock_check = Flag(False)
    """As ``debug.deadlock_check``."""

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

    disable_static_kernel_compile_cache = Flag(False)
    """Compile kernels for the shapes of a capture anew each time."""

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
