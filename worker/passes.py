"""Passes of the user's over a lowered graph: ``post_grad_custom_pre_pass`` and ``..._post_pass``.

A pass is called as TorchAir calls it, ``function(graph_module, example_inputs, config)``, and changes the FX
graph in place; what it returns is not looked at. It runs on fake tensors, before the guards are written, so
conditions that it puts on symbolic sizes become guards. Its digest is part of the request key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmrank.worker.errors import BadPass

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.torch_private.lowering import LoweredGraph

_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


def with_passes(lowered: LoweredGraph, config: CompilerConfig) -> LoweredGraph:
    """The graph as the user's passes leave it; the given one where there is none.

    Needs the tracing context that the graph was made in.

    Raises:
        BadPass: a pass raises an error, or leaves a graph that does not run on its own inputs, or has other
            inputs than before.
    """
    from warmrank.worker.torch_private.lowering import retrace

    for name in _PASSES:
        function = getattr(config, name)
        if function is None:
            continue
        graph = lowered.graph
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        named = f"config.{name} ({getattr(function, '__qualname__', function)})"
        try:
            function(graph, inputs, config)
        except Exception as error:  # whatever it is, it is the pass's own
            msg = f"{named} raised {type(error).__name__}: {error}"
            raise BadPass(msg, option=name) from error
        try:
            graph.graph.lint()
            graph.recompile()
            # Traced anew, so that operators of the pass's have shapes and memory like all others.
            lowered = retrace(lowered, inputs)
        except Exception as error:  # whatever the user's graph does wrong, the pass is to blame
            msg = (
                f"{named} leaves a graph that does not run: {type(error).__name__}: {error}. Change nodes "
                "through graph_module.graph, keep its inputs, and erase what nothing uses."
            )
            raise BadPass(msg, option=name) from error
    return lowered
