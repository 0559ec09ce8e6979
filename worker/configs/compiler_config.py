"""`CompilerConfig`: how a function is compiled, under TorchAir's names.

Every option can be set, copied and compared; each declares what it does (`worker.configs.section`), and
`CompilerConfig.check` says so where that is nothing. Nothing is accepted and then ignored in silence.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from warmrank.worker.configs.compiler_config import Aoe, Debug, Experimental, Export, Fusion, Ge, NpuGraphEx
from warmrank.worker.configs.compiler_config import AscendDump as DataDump
from warmrank.worker.configs.options import Choice, Function, NamedChoice, PoolHandle
from warmrank.worker.configs.section import (
    CAPTURE,
    MODES,
    TORCHAIR,
    Option,
    Part,
    Section,
    Verdict,
    changed,
    options,
    verdict,
)

__all__ = ["CompilerConfig"]

_log = logging.getLogger("torchair")


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
    dump_config = Part(DataDump)
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
        return {name: option.canonical(value) for name, option, value in _sorted_options(self)}

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


def _sorted_options(config: CompilerConfig) -> list[tuple[str, Option[Any], Any]]:
    """Every option of a configuration, sorted by dotted name."""
    return sorted(options(config), key=lambda entry: entry[0])
