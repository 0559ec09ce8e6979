"""``config.experimental_config``: options that TorchAir calls experimental."""

from __future__ import annotations

from dataclasses import replace

from warmrank.worker.configs.effects import (
    ASCEND,
    ASCEND_CAPTURE,
    ASCEND_ENGINE,
    FROZEN,
    nowhere,
    torchair_only,
)
from warmrank.worker.configs.options import INT64_MAX, Choice, Flag, IntList, IntRange, PlainMapping, Text
from warmrank.worker.configs.section import Part, Section


class AclGraphExperimental(Section, at="experimental_config.aclgraph", effect=ASCEND_CAPTURE):
    """Kernels made for one shape, and kernels made of several."""

    _aclnn_static_shape_kernel = Flag(False)
    """Compile kernels for the shapes that a graph is captured with."""

    _aclnn_static_shape_kernel_build_dir = Text[str | None](
        None, effect=replace(ASCEND, modes=("reduce-overhead",))
    )
    """Directory in which these kernels are built."""

    _aclnn_static_shape_kernel_sym_value_range = IntList(None)
    """Values of the symbol for which these kernels are compiled; None means every value."""

    _aclnn_static_shape_kernel_sym_index = IntRange(0, 0)
    """Which symbol of the graph the range speaks of."""

    _super_kernel_optimize = Flag(False)
    """Join kernels within marked scopes into one."""

    _super_kernel_optimize_options = PlainMapping(None)
    """Options of that joining."""

    _super_kernel_debug_options = PlainMapping(None)
    """Options for finding faults in that joining."""


_NO_BACKWARD = nowhere("a cached function has no backward")


class Experimental(Section, at="experimental_config", effect=ASCEND_ENGINE):
    """Passes over the graph, and scheduling by the Ascend engine."""

    cc_parallel_enable = Flag(False)
    """Run computation and communication side by side."""

    keep_inference_input_mutations = Flag(
        True, effect=nowhere("in-place changes of inputs always stay inside the graph")
    )
    """Keep in-place changes of inputs inside the graph."""

    memory_efficiency = Flag(False)
    """Let feature memory be moved between runs."""

    frozen_parameter = Flag(False, effect=FROZEN)
    """Treat the addresses of parameters as constants."""

    static_model_ops_lower_limit = IntRange[int | None](None, -1)
    """Fewest operators of a subgraph that is sunk to the device as a whole."""

    jit_compile = Choice("auto", ("auto",))
    """When operators are compiled at run time."""

    npu_fx_pass = Flag(False, effect=ASCEND)
    """Run the device's own passes over the graph."""

    aot_config_enable_joint_graph = Flag(False, effect=_NO_BACKWARD)
    """Compile forward and backward as one graph."""

    aot_config_output_loss_index = IntRange(0, -INT64_MAX - 1, effect=_NO_BACKWARD)
    """Which output of that joint graph is the loss."""

    topology_sorting_strategy = Choice("DFS", ("BFS", "DFS", "RDFS", "StableRDFS"))
    """Order in which the graph is walked."""

    enable_ref_data = Flag(False)
    """Treat inputs that are changed in place as references."""

    enable_view_optimize = Flag(True)
    """Let views share memory with what they view."""

    remove_noop_ops = Flag(
        True, effect=torchair_only("a graph runs as it was written, operators that change nothing included")
    )
    """Drop operators that change nothing."""

    tiling_schedule_optimize = Flag(False)
    """Compute tilings on the device."""

    pattern_fusion_pass = Flag(True, effect=ASCEND)
    """Replace known patterns of operators by fused ones."""

    aclgraph = Part(AclGraphExperimental)
