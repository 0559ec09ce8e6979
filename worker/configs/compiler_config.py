"""`CompilerConfig`: TorchAir's options, none of which is ignored; the parameters of `cache_compile`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from warmrank.worker.configs.options import (
    MODES,
    TORCHAIR,
    Function,
    NamedChoice,
    Part,
    Section,
    changed,
    options,
)
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.sections import (
        AclGraph,
        Aoe,
        AscendDump,
        Debug,
        Experimental,
        Export,
        Fusion,
        Ge,
        Inference,
        NpuGraphEx,
    )

_log = logging.getLogger("torchair")
GuardMode = Literal["always", "once", "skip"]
OnRecompile = Literal["add", "abandon"]
OnGearMiss = Literal["error", "pad"]
Rng = Literal["refuse", "allow"]
EngineChoice = Literal["auto", "graph", "aoti", "torchair"]


class CompilerConfig(Section, at=""):
    """Configuration of a compile.

    Options are attributes: ``config.debug.aclgraph.clone_input = False``. A wrong value raises `BadConfig`,
    which lists the allowed ones; an unknown name raises `UnknownOption`, which gives the nearest. Two
    configurations are equal if all their options are; ``copy.deepcopy`` and ``copy.copy`` copy all of it.
    """

    # Which engine compiles. Not TorchAir's default, which is max-autotune: see docs/decisions
    mode = NamedChoice("reduce-overhead", MODES)
    debug: Part[Debug] = Part("Debug")
    export: Part[Export] = Part("Export")
    dump_config: Part[AscendDump] = Part("AscendDump")
    fusion_config: Part[Fusion] = Part("Fusion")
    experimental_config: Part[Experimental] = Part("Experimental")
    inference_config: Part[Inference] = Part("Inference")
    ge_config: Part[Ge] = Part("Ge")
    aoe_config: Part[Aoe] = Part("Aoe")
    aclgraph_config: Part[AclGraph] = Part("AclGraph")
    npugraphex_config: Part[NpuGraphEx] = Part("NpuGraphEx")

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
        if not given.keys() - {"mode"}:
            return
        from warmrank.worker.configs.sections import no_effect

        if engine != TORCHAIR and _needs_eager(given) and not _asks_for_eager(given):
            _warn_once(
                "debug.data_dump and debug.fx_summary make the graph run eagerly; "
                "unset them once the files are written, or set debug.fx_summary.skip_compile = False"
            )
        for name, option, value in sorted(changed(self), key=lambda entry: entry[0]):
            if why := no_effect(option, value, mode=self.mode, engine=engine):
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
