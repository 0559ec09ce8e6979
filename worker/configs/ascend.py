"""Options that speak to the Ascend toolchain: its graph engine, tuning, fusion, dumps and export."""

from __future__ import annotations

from warmrank.worker.configs.effects import ASCEND, ASCEND_CAPTURE, ASCEND_ENGINE
from warmrank.worker.configs.options import Choice, ExistingDirectory, ExistingFile, Flag, Number, Text
from warmrank.worker.configs.section import Part, Section


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


class DataDump(Section, at="dump_config", effect=ASCEND_ENGINE):
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
