"""`CompilerConfig`: how a function is compiled, under TorchAir's names.

Every option can be set, copied and compared; `CompilerConfig.check_supported` says which of them warmrank
cannot follow yet. Nothing is accepted and then ignored.
"""

from __future__ import annotations

from typing import Any

from worker.configs.ascend import Aoe, DataDump, Export, Fusion, Ge
from worker.configs.debug import Debug
from worker.configs.experimental import Experimental
from worker.configs.npugraphex import NpuGraphEx
from worker.configs.options import Choice, Function, PoolHandle
from worker.configs.section import Option, Part, Section, options
from worker.errors import NotYet

__all__ = ["CompilerConfig"]


class Inference(Section, at="inference_config"):
    """Options of inference."""

    dynamic_gears_merge_policy = Choice("zip", ("zip", "product"))
    """How the gears of several dimensions combine: one by one, or each with each."""


class AclGraph(Section, at="aclgraph_config"):
    """Memory of captured graphs."""

    use_custom_pool = PoolHandle(None)
    """Memory reuse, mode one: the pool that all graphs of this configuration share; None: one per graph."""


class CompilerConfig(Section, at=""):
    """How a function is compiled.

    Options are attributes: ``config.debug.aclgraph.clone_input = False``. A wrong value raises `BadConfig`,
    which lists the allowed ones; an unknown name raises `UnknownOption`, which gives the nearest. Two
    configurations are equal if all their options are; ``copy.deepcopy`` and ``copy.copy`` copy all of it.
    """

    mode = Choice("reduce-overhead", ("max-autotune", "reduce-overhead", "npugraph_ex"))
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

    def check_supported(self) -> None:
        """Refuse what warmrank cannot follow yet, all of it at once.

        Raises:
            NotYet: options are set to values that nothing implements today.
        """
        missing = [
            (name, value, option.default)
            for name, option, value in _sorted_options(self)
            if not option.takes_effect(value)
        ]
        if missing:
            asked = ", ".join(f"config.{name} = {value!r}" for name, value, _ in missing)
            works = ", ".join(f"config.{name} = {default!r}" for name, _, default in missing)
            raise NotYet(asked, instead=f"what works today: {works}")


def _sorted_options(config: CompilerConfig) -> list[tuple[str, Option[Any], Any]]:
    """Every option of a configuration, sorted by dotted name."""
    return sorted(options(config), key=lambda entry: entry[0])
