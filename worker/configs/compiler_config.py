"""`CompilerConfig`: how a function is compiled, under TorchAir's names; no option is ignored in silence."""

from __future__ import annotations

import functools
import logging

from warmrank.worker.configs.options import (
    ASCEND,
    ASCEND_CAPTURE,
    ASCEND_ENGINE,
    ASCEND_FLAT,
    CAPTURE,
    EVERY_MODE,
    FROZEN,
    INT64_MAX,
    MODES,
    TORCHAIR,
    Choice,
    Directory,
    Effect,
    ExistingDirectory,
    ExistingFile,
    Flag,
    Function,
    IntList,
    IntRange,
    NamedChoice,
    Number,
    Part,
    PlainMapping,
    PoolHandle,
    Section,
    Text,
    changed,
    no_effect,
    options,
)
from warmrank.worker.values import replace

__all__ = ["CompilerConfig"]

_log = logging.getLogger("torchair")
_GRAPH_CAPTURE = ("reduce-overhead", "npugraph_ex")
_AS_WRITTEN = Effect(
    torchair_modes=_GRAPH_CAPTURE,
    why="a graph keeps in-place operators as they were written, so none is turned back",
)
_CONCATENATIONS = Effect(
    torchair_modes=_GRAPH_CAPTURE, why="a graph runs as it was written, concatenations included"
)
_NO_OPS = Effect(
    torchair_modes=MODES, why="a graph runs as it was written, operators that change nothing included"
)
_NO_BACKWARD = Effect(torchair_modes=(), why="a cached function has no backward")
_MUTATIONS = Effect(torchair_modes=(), why="in-place changes of inputs always stay inside the graph")


class Ge(Section, at="ge_config", effect=ASCEND_ENGINE):
    """The Ascend graph engine."""

    enable_single_stream = Flag(False)  # Put all operators onto one stream
    oo_level = Choice("O3", ("O1", "O3"))  # Level of optimisation
    oo_constant_folding = Flag[bool | None](None)  # Fold constants; None leaves it to the level
    oo_dead_code_elimination = Flag[bool | None](None)  # Drop what nothing uses; None leaves it to the level
    # When statistics of the compile are written: never, with the option on, or always
    export_compile_stat = Choice("2", ("0", "1", "2"))
    aicore_num = Number(None)  # Number of cores a graph may use
    optimization_switch = Number(None)  # Optimisations switched on or off by name
    multistream_parallel_mode = Number(None)  # How operators are spread over streams


class Aoe(Section, at="aoe_config", effect=ASCEND_ENGINE):
    """The Ascend tuning engine."""

    aoe_mode = Choice[str | None](None, ("2",))  # What is tuned; None tunes nothing
    work_path = ExistingDirectory("./")  # Where the tuner works
    aoe_config_file = ExistingFile()  # A configuration file of the tuner


class Fusion(Section, at="fusion_config", effect=ASCEND_ENGINE):
    """Fusion of operators."""

    fusion_switch_file = ExistingFile()  # A file that switches fusions on or off by name


class AscendDump(Section, at="dump_config", effect=ASCEND_ENGINE):
    """Dumps of every operator's data while a graph runs; off the npu see ``debug.data_dump``."""

    enable_dump = Flag(False, effect=ASCEND)  # Dump at all
    dump_path = ExistingDirectory("./", effect=ASCEND)  # Where to
    dump_mode = Choice("all", ("input", "output", "all"))  # Inputs, outputs or both
    quant_dumpable = Flag(False)  # Dump what comes before quantisation too
    # Which steps; empty means every one
    dump_step = Text("", form=r"(\d+(-\d+)?(\|\d+(-\d+)?)*)?", example="0|1|2-5|6")
    # Which operators; empty means every one
    dump_layer = Text("", form=r'[0-9a-zA-Z_" /\\.]*', example="Mul_1 Add1 Conv2D_1")
    dump_data = Choice("tensor", ("tensor", "stats"))  # The data, or statistics of them
    dump_config_path = ExistingFile(suffix=".json")  # A dump configuration of the Ascend runtime
    # Of the graph before or after its passes
    data_dump_stage = Choice("optimized", ("original", "optimized"), effect=ASCEND_CAPTURE)


class ExportExperimental(Section, at="export.experimental", effect=ASCEND_ENGINE):
    """What an export writes beside the graph."""

    enable_record_nn_module_stack = Flag(False)  # Which module each operator comes from
    auto_atc_config_generated = Flag(False)  # A template for the offline compiler
    enable_lite_export = Flag(False)  # The form for small devices


class Export(Section, at="export", effect=ASCEND_ENGINE):
    """Export of the graph for the offline compiler."""

    export_mode = Flag(False)  # Export at all
    export_path_dir = ExistingDirectory("./")  # Where to
    export_name = Text[str | None](None)  # Name of the graph's file
    weight_name = Text[str | None](None)  # Name of the weights' file
    inputs_name = Text[str | None](None)  # Name of the inputs' file
    experimental = Part(ExportExperimental)


class GraphDump(Section, at="debug.graph_dump"):
    """A dump of the graph when it is compiled: as it was traced, and as the user's passes left it."""

    # Form of the dump: FX's table, the Ascend engine's, or Python; None dumps nothing
    type = Choice[str | None](None, ("txt", "pbtxt", "py"), of_ascend=("pbtxt",))
    path = Directory(None)  # Directory of the dump; None means the working directory


class DataDump(Section, at="debug.data_dump"):
    """A dump of every operator's results on every call; the graph runs eagerly meanwhile."""

    type = Choice[str | None](None, ("npy",))  # Form of the dump; None dumps nothing
    path = Directory(None)  # Directory of the dump; None means the working directory
    # Which operators to dump: gets a node of the FX graph, returns it or None; None means all
    filter = Function(None)


class FxSummary(Section, at="debug.fx_summary"):
    """A table of the graph's operators in the working directory, when the graph is compiled."""

    type = Choice[str | None](None, ("csv",))  # Form of the table; None writes none
    skip_compile = Flag(True)  # With a table, run the graph eagerly, without kernels or capture


class AclGraphDebug(Section, at="debug.aclgraph", effect=CAPTURE):
    """How graphs are captured and what they do with their inputs, outputs and memory."""

    # Do not turn operators back into their in-place forms
    disable_reinplace_inplaceable_ops_pass = Flag(False, effect=_AS_WRITTEN)
    # Do not turn operators that end in a copy into an input back into in-place forms
    disable_reinplace_input_mutated_ops_pass = Flag(False, effect=_AS_WRITTEN)
    # Memory reuse, mode two: True gives each captured shape of one graph a pool of its own
    disable_mempool_reuse_in_same_fx = Flag(False)
    # Return copies of a graph's outputs, which a later replay does not overwrite
    enable_output_clone = Flag(False)
    # Captures of one graph after which further shapes run eagerly, with a warning
    static_capture_size_limit = IntRange(64, 1)
    # Memory reuse, mode three: copy the user's inputs into memory of the graph before a replay
    clone_input = Flag(True)
    # Let operators write their part of a concatenation in place, and drop the concatenation
    remove_cat_ops = Flag(True, effect=_CONCATENATIONS)


class Debug(Section, at="debug"):
    """Aids for finding faults, and the options of captured graphs."""

    graph_dump = Part(GraphDump)
    data_dump = Part(DataDump)
    fx_summary = Part(FxSummary)
    aclgraph = Part(AclGraphDebug)

    run_eagerly = Flag(False)  # Run the compiled graph operator by operator, without capture
    # Watch for replays that wait for each other; TorchAir 2.13 reads it in mode npugraph_ex only
    deadlock_check = Flag(False, effect=ASCEND_FLAT)


class AclGraphExperimental(Section, at="experimental_config.aclgraph", effect=ASCEND_CAPTURE):
    """Kernels made for one shape, and kernels made of several."""

    _aclnn_static_shape_kernel = Flag(False)  # Compile kernels for the shapes that a graph is captured with
    # Directory in which these kernels are built
    _aclnn_static_shape_kernel_build_dir = Text[str | None](
        None, effect=replace(ASCEND, modes=("reduce-overhead",))
    )
    # Values of the symbol for which these kernels are compiled; None means every value
    _aclnn_static_shape_kernel_sym_value_range = IntList(None)
    _aclnn_static_shape_kernel_sym_index = IntRange(0, 0)  # Which symbol of the graph the range speaks of
    _super_kernel_optimize = Flag(False)  # Join kernels within marked scopes into one
    _super_kernel_optimize_options = PlainMapping(None)  # Options of that joining
    _super_kernel_debug_options = PlainMapping(None)  # Options for finding faults in that joining


class Experimental(Section, at="experimental_config", effect=ASCEND_ENGINE):
    """Passes over the graph, and scheduling by the Ascend engine."""

    cc_parallel_enable = Flag(False)  # Run computation and communication side by side
    # Keep in-place changes of inputs inside the graph
    keep_inference_input_mutations = Flag(True, effect=_MUTATIONS)
    memory_efficiency = Flag(False)  # Let feature memory be moved between runs
    frozen_parameter = Flag(False, effect=FROZEN)  # Treat the addresses of parameters as constants
    # Fewest operators of a subgraph that is sunk to the device as a whole
    static_model_ops_lower_limit = IntRange[int | None](None, -1)
    jit_compile = Choice("auto", ("auto",))  # When operators are compiled at run time
    npu_fx_pass = Flag(False, effect=ASCEND)  # Run the device's own passes over the graph
    # Compile forward and backward as one graph
    aot_config_enable_joint_graph = Flag(False, effect=_NO_BACKWARD)
    # Which output of that joint graph is the loss
    aot_config_output_loss_index = IntRange(0, -INT64_MAX - 1, effect=_NO_BACKWARD)
    # Order in which the graph is walked
    topology_sorting_strategy = Choice("DFS", ("BFS", "DFS", "RDFS", "StableRDFS"))
    enable_ref_data = Flag(False)  # Treat inputs that are changed in place as references
    enable_view_optimize = Flag(True)  # Let views share memory with what they view
    remove_noop_ops = Flag(True, effect=_NO_OPS)  # Drop operators that change nothing
    tiling_schedule_optimize = Flag(False)  # Compute tilings on the device
    pattern_fusion_pass = Flag(True, effect=ASCEND)  # Replace known patterns of operators by fused ones
    aclgraph = Part(AclGraphExperimental)


class NpuGraphEx(Section, at="npugraphex_config", effect=ASCEND_FLAT):
    """Options of mode ``npugraph_ex``; in mode reduce-overhead use those under `config.debug`."""

    force_eager = Flag(False, effect=EVERY_MODE)  # As ``debug.run_eagerly``
    # Capture anew on every call
    force_recapture = Flag(False, effect=Effect(modes=_GRAPH_CAPTURE))
    # Which calls of other threads a running capture forbids
    capture_error_mode = Choice("global", ("global", "thread_local", "relaxed"))
    # Do not look whether what was captured can be replayed
    unsafe_skip_npugraph_capture_validation = Flag(False)
    record_statistics_debug_info = Flag(False)  # Note statistics of captures and replays
    deadlock_check = Flag(False)  # As ``debug.deadlock_check``
    use_graph_pool = PoolHandle(None)  # As ``aclgraph_config.use_custom_pool``
    # The opposite of ``debug.aclgraph.disable_mempool_reuse_in_same_fx``
    reuse_graph_pool_in_same_fx = Flag(True)
    capture_limit = IntRange(64, 1)  # As ``debug.aclgraph.static_capture_size_limit``
    clone_input = Flag(True)  # As ``debug.aclgraph.clone_input``
    clone_output = Flag(False)  # As ``debug.aclgraph.enable_output_clone``
    # Compile kernels for the shapes of a capture anew each time
    disable_static_kernel_compile_cache = Flag(False)
    static_kernel_compile = Flag(False)  # Compile kernels for the shapes that a graph is captured with
    super_kernel_optimize = Flag(False)  # Join kernels within marked scopes into one
    super_kernel_optimize_options = PlainMapping(None)  # Options of that joining
    super_kernel_debug_options = PlainMapping(None)  # Options for finding faults in that joining
    frozen_parameter = Flag(False)  # Treat the addresses of parameters as constants
    remove_noop_ops = Flag(True)  # Drop operators that change nothing
    remove_cat_ops = Flag(True)  # Let operators write their part of a concatenation in place
    inplace_pass = Flag(True)  # Turn operators back into their in-place forms
    input_inplace_pass = Flag(True)  # The same for operators that end in a copy into an input
    pattern_fusion_pass = Flag(True)  # Replace known patterns of operators by fused ones
    # A pass of the user's over the graph, before the built-in ones
    post_grad_custom_pre_pass = Function(None)
    # A pass of the user's over the graph, after the built-in ones
    post_grad_custom_post_pass = Function(None)
    dump_tensor_data = Flag(False)  # Dump every operator's data
    # Of the graph before or after its passes
    data_dump_stage = Choice("optimized", ("original", "optimized"))
    data_dump_dir = ExistingDirectory("./")  # Where to
    # Which symbol of the graph the range below speaks of
    _vllm_aclnn_static_kernel_sym_index = IntRange(0, 0)
    # Values of the symbol for which kernels are compiled; None means every value
    _vllm_aclnn_static_kernel_sym_range = IntList(None)


class Inference(Section, at="inference_config"):
    """Options of inference."""

    # How the gears of several dimensions combine: one by one, or each with each
    dynamic_gears_merge_policy = Choice("zip", ("zip", "product"))


class AclGraph(Section, at="aclgraph_config", effect=CAPTURE):
    """Memory of captured graphs."""

    # Memory reuse, mode one: the pool that all graphs of this configuration share; None: one per graph
    use_custom_pool = PoolHandle(None)


class CompilerConfig(Section, at=""):
    """How a function is compiled.

    Options are attributes: ``config.debug.aclgraph.clone_input = False``. A wrong value raises `BadConfig`,
    which lists the allowed ones; an unknown name raises `UnknownOption`, which gives the nearest. Two
    configurations are equal if all their options are; ``copy.deepcopy`` and ``copy.copy`` copy all of it.
    """

    # Which engine compiles. Not TorchAir's default, which is max-autotune: see docs/decisions
    mode = NamedChoice("reduce-overhead", MODES)
    debug = Part(Debug)
    export = Part(Export)
    dump_config = Part(AscendDump)
    fusion_config = Part(Fusion)
    experimental_config = Part(Experimental)
    inference_config = Part(Inference)
    ge_config = Part(Ge)
    aoe_config = Part(Aoe)
    aclgraph_config = Part(AclGraph)
    npugraphex_config = Part(NpuGraphEx)

    # A pass of the user's over the graph, before the built-in ones
    post_grad_custom_pre_pass = Function(None)
    # A pass of the user's over the graph, after the built-in ones
    post_grad_custom_post_pass = Function(None)

    def canonical(self) -> dict[str, str]:
        """Every option as text, by sorted dotted name: its part of a request key, equal in every process."""
        every = sorted(options(self), key=lambda entry: entry[0])
        return {name: option.canonical(value) for name, option, value in every}

    def runs_eagerly(self) -> bool:
        """Whether the graph runs operator by operator, without compiled kernels and capture.

        ``debug.run_eagerly`` and ``force_eager`` ask for it; ``debug.data_dump``, and ``debug.fx_summary``
        with ``skip_compile``, need it. The same options do it in TorchAir.
        """
        return self._is_eager_by_name() or self._is_eager_for_files()

    def _is_eager_by_name(self) -> bool:
        return self.debug.run_eagerly or self.npugraphex_config.force_eager

    def _is_eager_for_files(self) -> bool:
        summary = self.debug.fx_summary
        return self.debug.data_dump.type is not None or (summary.type is not None and summary.skip_compile)

    def engine_mode(self) -> str:
        """The mode whose engine compiles: a graph that runs eagerly needs no kernels, whatever `mode` is."""
        return "reduce-overhead" if self.runs_eagerly() and self.mode == "max-autotune" else self.mode

    def check(self, device_kind: str, *, engine: str = "") -> None:
        """Warn, once per process, of options that have no effect.

        Args:
            device_kind: that the function is compiled for.
            engine: name of the engine; empty for the one of warmrank's own that the mode means.
        """
        if engine != TORCHAIR and self._is_eager_for_files() and not self._is_eager_by_name():
            _warn_once(
                "debug.data_dump and debug.fx_summary make the graph run eagerly; "
                "unset them once the files are written, or set debug.fx_summary.skip_compile = False"
            )
        for name, option, value in sorted(changed(self), key=lambda entry: entry[0]):
            why = no_effect(option.effect_of(value), mode=self.mode, engine=engine)
            if why:
                _warn_once(f"config.{name} has no effect on device {device_kind} in mode {self.mode}: {why}")


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)
