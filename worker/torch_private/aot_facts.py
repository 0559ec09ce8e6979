"""What AOTAutograd leaves to the wrappers that it puts around a compiled graph.

Facts (torch 2.11 to 2.13, ``torch/_functorch/_aot_autograd/schemas.py``): after AOTAutograd ran within a
`TracingContext`, ``context.fw_metadata`` is a ``ViewAndMutationMeta``. A cache that keeps the compiled graph
without its wrappers is right only where they have nothing to do: no mutation of an input is left to them
(``mutated_inp_runtime_indices``), no output is rebuilt from a base that the graph returns in its place
(``num_intermediate_bases``), and no effect token is threaded through (``tokens``).
"""

from __future__ import annotations

from typing import Any

FACTS = {
    "torch._functorch._aot_autograd.schemas:ViewAndMutationMeta": (
        "mutated_inp_runtime_indices num_intermediate_bases tokens"
    ),
    "torch._guards:TracingContext": "fw_metadata",
}


def left_to_wrappers(context: Any) -> str:
    """What the wrappers would do after each call, in words; empty for nothing.

    Args:
        context: the tracing context that AOTAutograd ran in.
    """
    found = context.fw_metadata
    if found is None:
        return ""
    if found.mutated_inp_runtime_indices:
        return f"{len(found.mutated_inp_runtime_indices)} inputs are written to outside of the graph"
    if found.num_intermediate_bases:
        return f"{found.num_intermediate_bases} outputs are views that are rebuilt after each call"
    if found.tokens:
        return "the graph orders side effects by tokens"
    return ""
