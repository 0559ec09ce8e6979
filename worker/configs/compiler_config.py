"""`CompilerConfig`: TorchAir's options, none of which is ignored; the parameters of `cache_compile`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from warmrank.worker.configs.options import (
    ASCEND_FLAT,
    CAPTURE,
    CAPTURED,
    MODES,
    TORCHAIR,
    Choice,
    Directory,
    Effect,
    Flag,
    Function,
    IntRange,
    NamedChoice,
    Part,
    PoolHandle,
    Section,
    changed,
    no_effect,
    options,
)
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.torchair_sections import (
        Aoe,
        AscendDump,
        Experimental,
        Export,
        Fusion,
        Ge,
        NpuGraphEx,
    )

_log = logging.getLogger("torchair")
_TORCHAIR_SECTIONS = "warmrank.worker.configs.torchair_sections"
_AS_WRITTEN = Effect(
    torchair_modes=CAPTURED,
    why="a graph keeps in-place operators as they were written, so none is turned back",
)
_CONCATENATIONS = Effect(
    torchair_modes=CAPTURED, why="a graph runs as it was written, concatenations included"
)
GuardMode = Literal["always", "once", "skip"]
OnRecompile = Literal["add", "abandon"]
OnGearMiss = Literal["error", "pad"]
Rng = Literal["refuse", "allow"]
EngineChoice = Literal["auto", "graph", "aoti", "torchair"]


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
    """Options of captures, and of the inputs, outputs and memory of captured graphs."""

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


class Inference(Section, at="inference_config"):
    """Options of inference."""

    # How the gears of several dimensions combine: one by one, or each with each
    dynamic_gears_merge_policy = Choice("zip", ("zip", "product"))


class AclGraph(Section, at="aclgraph_config", effect=CAPTURE):
    """Memory of captured graphs."""

    # Memory reuse, mode one: the pool that all graphs of this configuration share; None: one per graph
    use_custom_pool = PoolHandle(None)


class CompilerConfig(Section, at=""):
    """Configuration of a compile.

    Options are attributes: ``config.debug.aclgraph.clone_input = False``. A wrong value raises `BadConfig`,
    which lists the allowed ones; an unknown name raises `UnknownOption`, which gives the nearest. Two
    configurations are equal if all their options are; ``copy.deepcopy`` and ``copy.copy`` copy all of it.
    """

    # Which engine compiles. Not TorchAir's default, which is max-autotune: see docs/decisions
    mode = NamedChoice("reduce-overhead", MODES)
    debug = Part(Debug)
    export: Part[Export] = Part("Export", _TORCHAIR_SECTIONS)
    dump_config: Part[AscendDump] = Part("AscendDump", _TORCHAIR_SECTIONS)
    fusion_config: Part[Fusion] = Part("Fusion", _TORCHAIR_SECTIONS)
    experimental_config: Part[Experimental] = Part("Experimental", _TORCHAIR_SECTIONS)
    inference_config = Part(Inference)
    ge_config: Part[Ge] = Part("Ge", _TORCHAIR_SECTIONS)
    aoe_config: Part[Aoe] = Part("Aoe", _TORCHAIR_SECTIONS)
    aclgraph_config = Part(AclGraph)
    npugraphex_config: Part[NpuGraphEx] = Part("NpuGraphEx", _TORCHAIR_SECTIONS)

    # A pass of the user's over the graph, before the built-in ones
    post_grad_custom_pre_pass = Function(None)
    # A pass of the user's over the graph, after the built-in ones
    post_grad_custom_post_pass = Function(None)

    def canonical(self) -> dict[str, str]:
        """Every option as text, by sorted dotted name: its part of a request key, equal in every process."""
        every = sorted(options(self), key=lambda entry: entry[0])
        return {name: option.canonical(value) for name, option, value in every}

    def given(self) -> dict[str, Any]:
        """The options that are not at their default, by dotted name; makes no section that was never set."""
        return {name: value for name, _, value in changed(self)}

    def runs_eagerly(self) -> bool:
        """True if the graph runs operator by operator, without compiled kernels and capture.

        ``debug.run_eagerly`` and ``force_eager`` ask for it; ``debug.data_dump``, and ``debug.fx_summary``
        with ``skip_compile``, need it. The same options do it in TorchAir.
        """
        given = self.given()
        return _asks_for_eager(given) or _needs_eager(given)

    def engine_mode(self) -> str:
        """The mode whose engine compiles: a graph that runs eagerly needs no kernels, whatever `mode` is."""
        return "reduce-overhead" if self.runs_eagerly() and self.mode == "max-autotune" else self.mode

    def check(self, device_kind: str, *, engine: str = "") -> None:
        """Warn, once per process, of options that have no effect.

        Args:
            device_kind: that the function is compiled for.
            engine: name of the engine; empty for the one of warmrank's own that the mode means.
        """
        given = self.given()
        if engine != TORCHAIR and _needs_eager(given) and not _asks_for_eager(given):
            _warn_once(
                "debug.data_dump and debug.fx_summary make the graph run eagerly; "
                "unset them once the files are written, or set debug.fx_summary.skip_compile = False"
            )
        for name, option, value in sorted(changed(self), key=lambda entry: entry[0]):
            why = no_effect(option.effect_of(value), mode=self.mode, engine=engine)
            if why:
                where = f"on device {device_kind} in mode {self.mode}"
                _warn_once(f"config.{name} = {value!r} has no effect {where}: {why}")


def _asks_for_eager(given: dict[str, Any]) -> bool:
    return bool(given.get("debug.run_eagerly") or given.get("npugraphex_config.force_eager"))


def _needs_eager(given: dict[str, Any]) -> bool:
    """True if files are to be written that only a graph which runs eagerly fills."""
    table = given.get("debug.fx_summary.type") and given.get("debug.fx_summary.skip_compile", True)
    return bool(given.get("debug.data_dump.type") or table)


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


class CacheOptions(Value):
    """The parameters of `cache_compile` in one value; ``guards`` and ``engine`` may be left to the launch."""

    config: CompilerConfig
    dynamic: bool = True
    cache_dir: str | None = None
    global_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None
    custom_decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    ge_cache: bool = False
    guards: GuardMode | None = None
    on_recompile: OnRecompile = "add"
    on_gear_miss: OnGearMiss = "error"
    rng: Rng = "refuse"
    engine: EngineChoice | None = None


class LaunchDefaults(Value):
    """Launch-wide defaults for cached functions.

    Attributes:
        no_compile: a miss is an error.
        place: rank and world size where they do not come from ``torch.distributed``.
    """

    cache_dir: str | None = None
    guards: GuardMode | None = None
    engine: EngineChoice | None = None
    no_compile: bool = False
    place: tuple[int, int] | None = None


class LaunchScope:
    """Launch-wide defaults of the launch that this process works for, in all threads of the user's code.

    Attributes:
        defaults: for cached functions that are made now.
        functions: the cached functions that were made; None outside of a launch.
    """

    def __init__(self) -> None:
        self.defaults = LaunchDefaults()
        self.functions: list[Any] | None = None

    @contextmanager
    def of(self, defaults: LaunchDefaults, functions: list[Any] | None = None) -> Iterator[None]:
        """Lay these defaults down, and note in a list what is made under them."""
        before = self.defaults, self.functions
        self.defaults, self.functions = defaults, functions
        try:
            yield
        finally:
            self.defaults, self.functions = before


launch_scope = LaunchScope()
