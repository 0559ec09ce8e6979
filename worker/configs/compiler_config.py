"""`CompilerConfig`: how a function is compiled, under TorchAir's names; no option is ignored in silence."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

from warmrank.worker.configs.options import (
    INT64_MAX,
    Choice,
    Directory,
    ExistingDirectory,
    ExistingFile,
    Flag,
    Function,
    IntList,
    IntRange,
    NamedChoice,
    Number,
    PlainMapping,
    PoolHandle,
    Text,
)
from warmrank.worker.configs.section import (
    ASCEND,
    ASCEND_CAPTURE,
    ASCEND_ENGINE,
    ASCEND_FLAT,
    CAPTURE,
    EVERY_MODE,
    FROZEN,
    MODES,
    TORCHAIR,
    Effect,
    Part,
    Section,
    Verdict,
    captured_by_torchair,
    changed,
    nowhere,
    options,
    torchair_only,
    verdict,
)

_log = logging.getLogger("torchair")


class Ge(Section, at="ge_config", effect=ASCEND_ENGINE):
    """The Ascend graph engine."""

    enable_single_stream = Flag(False)
    """Put all operators onto one stream."""

    oo_level = Choice("O3", ("O1", "O3"))
    """Level of optimisation."""

    oo_constant_folding = Flag[bool | None](None)
    """Fold constants; None leaves it to the level."""

    oo_dead_code_elimination = Flag[bool | None](None)
    """Drop what nothing uses; None leaves it to the level."""

    export_compile_stat = Choice("2", ("0", "1", "2"))
    """When statistics of the compile are written: never, with the option on, or always."""

    aicore_num = Number(None)
    """Number of cores a graph may use."""

    optimization_switch = Number(None)
    """Optimisations switched on or off by name."""

    multistream_parallel_mode = Number(None)
    """How operators are spread over streams."""


class Aoe(Section, at="aoe_config", effect=ASCEND_ENGINE):
    """The Ascend tuning engine."""

    aoe_mode = Choice[str | None](None, ("2",))
    """What is tuned; None tunes nothing."""

    work_path = ExistingDirectory("./")
    """Where the tuner works."""

    aoe_config_file = ExistingFile()
    """A configuration file of the tuner."""


class Fusion(Section, at="fusion_config", effect=ASCEND_ENGINE):
    """Fusion of operators."""

    fusion_switch_file = ExistingFile()
    """A file that switches fusions on or off by name."""


class AscendDump(Section, at="dump_config", effect=ASCEND_ENGINE):
    """Dumps of every operator's data while a graph runs; off the npu see ``debug.data_dump``."""

    enable_dump = Flag(False, effect=ASCEND)
    """Dump at all."""

    dump_path = ExistingDirectory("./", effect=ASCEND)
    """Where to."""

    dump_mode = Choice("all", ("input", "output", "all"))
    """Inputs, outputs or both."""

    quant_dumpable = Flag(False)
    """Dump what comes before quantisation too."""

    dump_step = Text("", form=r"(\d+(-\d+)?(\|\d+(-\d+)?)*)?", example="0|1|2-5|6")
    """Which steps; empty means every one."""

    dump_layer = Text("", form=r'[0-9a-zA-Z_" /\\.]*', example="Mul_1 Add1 Conv2D_1")
    """Which operators; empty means every one."""

    dump_data = Choice("tensor", ("tensor", "stats"))
    """The data, or statistics of them."""

    dump_config_path = ExistingFile(suffix=".json")
    """A dump configuration of the Ascend runtime."""

    data_dump_stage = Choice("optimized", ("original", "optimized"), effect=ASCEND_CAPTURE)
    """Of the graph before or after its passes."""


class ExportExperimental(Section, at="export.experimental", effect=ASCEND_ENGINE):
    """What an export writes beside the graph."""

    enable_record_nn_module_stack = Flag(False)
    """Which module each operator comes from."""

    auto_atc_config_generated = Flag(False)
    """A template for the offline compiler."""

    enable_lite_export = Flag(False)
    """The form for small devices."""


class Export(Section, at="export", effect=ASCEND_ENGINE):
    """Export of the graph for the offline compiler."""

    export_mode = Flag(False)
    """Export at all."""

    export_path_dir = ExistingDirectory("./")
    """Where to."""

    export_name = Text[str | None](None)
    """Name of the graph's file."""

    weight_name = Text[str | None](None)
    """Name of the weights' file."""

    inputs_name = Text[str | None](None)
    """Name of the inputs' file."""

    experimental = Part(ExportExperimental)


class GraphDump(Section, at="debug.graph_dump"):
    """A dump of the graph when it is compiled: as it was traced, and as the user's passes left it."""

    type = Choice[str | None](None, ("txt", "pbtxt", "py"), of_ascend=("pbtxt",))
    """Form of the dump: FX's table, the Ascend engine's, or Python; None dumps nothing."""

    path = Directory(None)
    """Directory of the dump; None means the working directory."""


class DataDump(Section, at="debug.data_dump"):
    """A dump of every operator's results on every call; the graph runs eagerly meanwhile."""

    type = Choice[str | None](None, ("npy",))
    """Form of the dump; None dumps nothing."""

    path = Directory(None)
    """Directory of the dump; None means the working directory."""

    filter = Function(None)
    """Which operators to dump: gets a node of the FX graph, returns it or None; None means all."""


class FxSummary(Section, at="debug.fx_summary"):
    """A table of the graph's operators in the working directory, when the graph is compiled."""

    type = Choice[str | None](None, ("csv",))
    """Form of the table; None writes none."""

    skip_compile = Flag(True)
    """With a table, run the graph eagerly, without kernels or capture."""


_IN_PLACE = captured_by_torchair(
    "a graph keeps in-place operators as they were written, so none is turned back"
)


class AclGraphDebug(Section, at="debug.aclgraph", effect=CAPTURE):
    """How graphs are captured and what they do with their inputs, outputs and memory."""

    disable_reinplace_inplaceable_ops_pass = Flag(False, effect=_IN_PLACE)
    """Do not turn operators back into their in-place forms."""

    disable_reinplace_input_mutated_ops_pass = Flag(False, effect=_IN_PLACE)
    """Do not turn operators that end in a copy into an input back into in-place forms."""

    disable_mempool_reuse_in_same_fx = Flag(False)
    """Memory reuse, mode two: True gives each captured shape of one graph a pool of its own."""

    enable_output_clone = Flag(False)
    """Return copies of a graph's outputs, which a later replay does not overwrite."""

    static_capture_size_limit = IntRange(64, 1)
    """Captures of one graph after which further shapes run eagerly, with a warning."""

    clone_input = Flag(True)
    """Memory reuse, mode three: copy the user's inputs into memory of the graph before a replay."""

    remove_cat_ops = Flag(
        True, effect=captured_by_torchair("a graph runs as it was written, concatenations included")
    )
    """Let operators write their part of a concatenation in place, and drop the concatenation."""


class Debug(Section, at="debug"):
    """Aids for finding faults, and the options of captured graphs."""

    graph_dump = Part(GraphDump)
    data_dump = Part(DataDump)
    fx_summary = Part(FxSummary)
    aclgraph = Part(AclGraphDebug)

    run_eagerly = Flag(False)
    """Run the compiled graph operator by operator, without capture."""

    deadlock_check = Flag(False, effect=ASCEND_FLAT)
    """Watch for replays that wait for each other; TorchAir 2.13 reads it in mode npugraph_ex only."""


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


__all__ = ["CompilerConfig"]


class Inference(Section, at="inference_config"):
    """Options of inference."""

    dynamic_gears_merge_policy = Choice("zip", ("zip", "product"))
    """How the gears of several dimensions combine: one by one, or each with each."""


class AclGraph(Section, at="aclgraph_config", effect=CAPTURE):
    """Memory of captured graphs."""

    use_custom_pool = PoolHandle(None)
    """Memory reuse, mode one: the pool that all graphs of this configuration share; None: one per graph."""


class CompilerConfig(Section, at=""):
    """How a function is compiled.

    Options are attributes: ``config.debug.aclgraph.clone_input = False``. A wrong value raises `BadConfig`,
    which lists the allowed ones; an unknown name raises `UnknownOption`, which gives the nearest. Two
    configurations are equal if all their options are; ``copy.deepcopy`` and ``copy.copy`` copy all of it.
    """

    mode = NamedChoice("reduce-overhead", MODES)
    """Which engine compiles. Not TorchAir's default, which is max-autotune: see docs/decisions."""

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

    post_grad_custom_pre_pass = Function(None)
    """A pass of the user's over the graph, before the built-in ones."""

    post_grad_custom_post_pass = Function(None)
    """A pass of the user's over the graph, after the built-in ones."""

    def canonical(self) -> dict[str, str]:
        """Every option by its dotted name, sorted, as text: the configuration's part of a request key.

        Equal options give equal text in every process. A pool counts only as given or not, because its
        handle differs from process to process and changes nothing that is compiled.
        """
        every = sorted(options(self), key=lambda entry: entry[0])
        return {name: option.canonical(value) for name, option, value in every}

    def runs_eagerly(self) -> bool:
        """Whether the graph runs operator by operator, without compiled kernels and without capture.

        That is asked for by ``debug.run_eagerly`` (or ``force_eager``), and needed by ``debug.data_dump``
        and by ``debug.fx_summary`` with ``skip_compile``; the same options do it in TorchAir.
        """
        debug = self.debug
        summary_only = debug.fx_summary.type is not None and debug.fx_summary.skip_compile
        dumping = debug.data_dump.type is not None
        return debug.run_eagerly or self.npugraphex_config.force_eager or dumping or summary_only

    def engine_mode(self) -> str:
        """The mode whose engine compiles: a graph that runs eagerly needs no kernels, whatever `mode` is."""
        return "reduce-overhead" if self.runs_eagerly() and self.mode == "max-autotune" else self.mode

    def check(self, device_kind: str, *, engine: str = "") -> None:
        """Say, once per process, which options have no effect with an engine on a kind of device.

        Args:
            device_kind: that the function is compiled for.
            engine: name of the engine that compiles; empty for the one of warmrank's own that the mode means.
                What engine ``torchair`` cannot do, it refuses when it translates the configuration.
        """
        eager_by_name = self.debug.run_eagerly or self.npugraphex_config.force_eager
        if engine != TORCHAIR and self.runs_eagerly() and not eager_by_name:
            _say_eager_once()
        for name, option, value in sorted(changed(self), key=lambda entry: entry[0]):
            answer, why = verdict(option.effect_of(value), mode=self.mode, engine=engine)
            if answer is Verdict.NO_EFFECT:
                _say_once(name, self.mode, device_kind, why)


@functools.cache
def _say_once(name: str, mode: str, device_kind: str, why: str) -> None:
    """Warn that an option does nothing; cached, so once per process, option, mode and device."""
    _log.warning("config.%s has no effect on device %s in mode %s: %s", name, device_kind, mode, why)


@functools.cache
def _say_eager_once() -> None:
    """Warn, once per process, that a dump costs what capture and kernels save."""
    _log.warning(
        "debug.data_dump and debug.fx_summary make the graph run eagerly; "
        "unset them once the files are written, or set debug.fx_summary.skip_compile = False"
    )
