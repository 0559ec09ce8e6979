"""TorchAir's side of `CompilerConfig`: its own sections, its own configurations and ``options=`` as ours.

Imported when one of them is read or set. Relied on (torch_npu 2.13 and 2.14): an option of
``torchair.CompilerConfig`` or ``npugraph_ex.CompilerConfig`` is an attribute of it or of a section, and holds
its value, or an object with the value under ``_value``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import (
    ASCEND,
    ASCEND_CAPTURE,
    ASCEND_ENGINE,
    ASCEND_FLAT,
    CAPTURED,
    EVERY_MODE,
    FROZEN,
    INT64_MAX,
    MODES,
    Choice,
    Effect,
    Flag,
    Function,
    IntRange,
    Option,
    Part,
    PoolHandle,
    Section,
    Word,
    changed,
    names,
    same,
)
from warmrank.worker.errors import BadConfig, NoCounterpart, UnknownOption
from warmrank.worker.values import replace

_NO_OPS = Effect(
    torchair_modes=MODES, why="a graph runs as it was written, operators that change nothing included"
)
_NO_BACKWARD = Effect(torchair_modes=(), why="a cached function has no backward")
_MUTATIONS = Effect(torchair_modes=(), why="in-place changes of inputs always stay inside the graph")


class IntList(Option[Sequence[int] | None]):
    """A list or tuple of ints."""

    words = "a list or tuple of ints"

    def _allows(self, value: object) -> bool:
        return isinstance(value, list | tuple) and all(type(element) is int for element in value)


class Number(Option[str | int | None]):
    """A number that the Ascend engine reads as text."""

    words = "an int or a str"

    def _allows(self, value: object) -> bool:
        return type(value) in {str, int}


class Text(Option[Word]):
    """Any text, or text that matches ``form``."""

    def __init__(
        self, default: Word, *, form: str = "", example: str = "", effect: Effect | None = None
    ) -> None:
        super().__init__(default, effect=effect)
        self.form = form
        self.words = f"a str such as {example!r}" if example else "a str"

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and (not self.form or re.fullmatch(self.form, value) is not None)


class PlainMapping(Option[Mapping[str, Any] | None]):
    """A dict that JSON can hold, so that its order changes no key."""

    words = "a dict with str keys that holds only str, numbers, bools, None, lists and dicts"

    def _allows(self, value: object) -> bool:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            return False
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return False
        return True


class ExistingDirectory(Option[str]):
    """A directory that exists when the option is set."""

    words = "the path of an existing directory, as a str"
    is_of_process = True

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and Path(value).is_dir()


class ExistingFile(Option[str | None]):
    """A file that exists when the option is set."""

    def __init__(self, *, suffix: str = "") -> None:
        super().__init__(None)
        self.suffix = suffix
        self.words = f"the path of an existing {suffix}{' ' if suffix else ''}file, as a str"

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and value.endswith(self.suffix) and Path(value).is_file()

    def canonical(self, value: str | None) -> str:
        """The content's digest: the same path may hold something else tomorrow."""
        if value is None:
            return "null"
        return json.dumps(hashlib.sha256(Path(value).read_bytes()).hexdigest())


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
    """Files that an export writes beside the graph."""

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
    force_recapture = Flag(False, effect=Effect(modes=CAPTURED))
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


_SECTIONS = ("torchair.configs.", "npugraph_ex.configs.")


def of_torchair(config: Any, parameter: str) -> CompilerConfig:
    """The equivalent of TorchAir's `CompilerConfig`, or of npugraph_ex's flat one.

    Raises:
        BadConfig: it is no configuration.
        NoCounterpart: it sets options that ours does not have; names all.
    """
    if isinstance(config, NpuGraphEx):
        return _flat({name.rpartition(".")[2]: value for name, _, value in changed(config)})
    package = type(config).__module__.partition(".")[0]
    if package not in ("torchair", "npugraph_ex") or type(config).__name__ != "CompilerConfig":
        msg = f"{parameter} is {config!r} ({type(config).__name__}); expected CompilerConfig"
        raise BadConfig(msg, parameter=parameter)
    given = dict(_changed(config, type(config)()))
    if package == "npugraph_ex":
        return _flat(given)
    ours = CompilerConfig()
    given.setdefault("mode", _value(config.mode))  # TorchAir's default is another
    _fill(ours, given, "torchair")
    return ours


def with_options(config: CompilerConfig, given: Any) -> CompilerConfig:
    """A copy with the ``options=`` of ``torch.compile`` or ``cache_compile``, which are npugraph_ex's."""
    if not given:
        return config
    if not isinstance(given, Mapping):
        msg = f"options is {given!r} ({type(given).__name__}); expected a dict"
        raise BadConfig(msg, parameter="options")
    made = copy.deepcopy(config)
    known = names(NpuGraphEx)
    for name, value in given.items():
        if name not in known:
            raise BadConfig(f"options has no {name!r}; there are {', '.join(known)}", parameter="options")
        setattr(made.npugraphex_config, name, value)
    return _effective(made)


def _flat(given: Mapping[str, Any]) -> CompilerConfig:
    """npugraph_ex's options; its mode where TorchAir is there to compile it."""
    ours = CompilerConfig()
    roots = getattr(sys.modules.get("torch_npu"), "__path__", ())
    if any((Path(root) / "dynamo" / "npugraph_ex").is_dir() for root in roots):
        ours.mode = "npugraph_ex"
    _fill(ours.npugraphex_config, given, "npugraph_ex")
    return _effective(ours)


_STATIC = "experimental_config.aclgraph._aclnn_static_shape_kernel"
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
    _STATIC: "static_kernel_compile",
    f"{_STATIC}_sym_index": "_vllm_aclnn_static_kernel_sym_index",
    f"{_STATIC}_sym_value_range": "_vllm_aclnn_static_kernel_sym_range",
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
_OBEYED = ("use_graph_pool", "reuse_graph_pool_in_same_fx", "capture_limit", "clone_input", "clone_output")
_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


def _effective(config: CompilerConfig) -> CompilerConfig:
    """In mode reduce-overhead, the flat options under the names that this mode obeys."""
    if config.mode == "reduce-overhead":
        ours = {theirs: name for name, theirs in FLAT.items() if theirs in _OBEYED}
        ours |= {name: name for name in _PASSES}
        for name, _, value in list(changed(config.npugraphex_config)):
            last = name.rpartition(".")[2]
            if last in ours:
                _put(config, ours[last], not value if last in INVERTED else value)
                del config.npugraphex_config.__dict__[last]
    return config


def _fill(ours: Section, given: Mapping[str, Any], package: str) -> None:
    missing = []
    for name, value in given.items():
        try:
            _put(ours, name, value)
        except UnknownOption:
            missing.append(f"{package}.CompilerConfig.{name} = {value!r}")
    if missing:
        msg = f"warmrank has no counterpart of {', '.join(missing)}; leave them at their defaults"
        raise NoCounterpart(msg, problems=tuple(missing))


def _put(section: Any, name: str, value: Any) -> None:
    *parts, last = name.removeprefix("npugraphex_config.").split(".")
    for part in parts:
        section = getattr(section, part)
    setattr(section, last, value)


def _changed(theirs: Any, fresh: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Options of an object of TorchAir's that are not as in a new one: dotted name, value."""
    found: list[tuple[str, Any]] = []
    for name, held in vars(theirs).items():
        default = getattr(fresh, name, None)
        public = name.removeprefix("_")
        seen = public if isinstance(getattr(type(theirs), public, None), property) else name
        if name == "_fixed_attrs" or hasattr(held, "replacement"):  # and what TorchAir itself reads no more
            continue
        if not is_option(held) and type(held).__module__.startswith(_SECTIONS):
            found += _changed(held, default, f"{prefix}{seen}.")
        elif not same(_value(held), _value(default)):
            found.append((f"{prefix}{seen}", _value(held)))
    return found


def is_option(value: Any) -> bool:
    """True if an attribute of TorchAir's is an object that holds an option's value."""
    return isinstance(getattr(type(value), "value", None), property)


def _value(held: Any) -> Any:
    return vars(held)["_value"] if is_option(held) else held
