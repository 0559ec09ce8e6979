"""The compile of engine ``aoti``: divide the graph, bind its inputs, let Inductor compile the library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from warmrank.worker.keys.environment import instruction_set

from warmrank.worker.engines.aoti_compile import compile_place, divide
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.errors import NotPortable
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.settings import settings
from warmrank.worker.torch_private.inductor import bind_inputs, compile_library
from warmrank.worker.torch_private.lowering import LoweredGraph, graph_of
from warmrank.worker.torch_private.symbols import as_described, conditions, rebuild, shape_env_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledParts:
    """What a compile made.

    Attributes:
        library: files of the shared library; None where there is nothing to compute.
        tail: the tail's sections, as engine ``graph`` names them; None where there is none.
        call: how to call both; goes into the artifact.
    """

    library: Mapping[str, bytes] | None
    tail: Mapping[str, bytes] | None
    call: dict[str, Any]


def compile_parts(lowered: LoweredGraph, facts: GraphFacts, identity: str) -> CompiledParts:
    """Compile a traced graph, within its tracing context.

    Raises:
        NotPortable: it cannot be compiled.
        NotYet: it uses a process group.
    """
    _refuse_lazy_bits(lowered, facts)
    _refuse_anchored(facts)
    graph = lowered.graph
    env = shape_env_of(node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder")
    before = conditions(env)
    division = divide(graph)
    call: dict[str, Any] = {
        "computes": division.library is not None,
        "tail_inputs": list(division.tail_inputs),
        "written": list(division.written),
        "tensors": [],
        "numbers": [],
        "constants": [],
    }
    tail = None
    if division.tail is not None:
        tail_graph = LoweredGraph(graph=division.tail, inputs=())
        tail = GraphEngine().compile(tail_graph, facts, keep_compiled=False).sections
    library: Mapping[str, bytes] | None = None
    if division.library is not None:
        # Before the inputs are bound: constants in the order in which engine graph keeps them.
        order = list(dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "get_attr"))
        inputs = bind_inputs(division.library)
        call["tensors"], call["numbers"] = list(inputs.tensors), list(inputs.numbers)
        call["constants"] = [order.index(name) for name in inputs.constants]
        with compile_place(identity) as place:
            library = compile_library(
                division.library,
                inputs.fakes,
                directory=place.directory,
                cache=place.cache,
                march=instruction_set().march,
                compiler=settings().compiler,
            )
    known = set(before)
    call["added"] = [text for text in conditions(env) if text not in known]
    return CompiledParts(library=library, tail=tail, call=call)


def compile_described(
    whole: Mapping[str, bytes], description: Mapping[str, Any], identity: str
) -> CompiledParts:
    """Compile a graph from an artifact's sections, without Dynamo's trace.

    Raises:
        NotPortable: it cannot be compiled.
    """
    replayed = GraphEngine().load(whole, {}, {})
    with _plain(), as_described(description):
        values = rebuild(description)
        graph = graph_of(replayed, values)
        facts = GraphFacts(input_classes=(), num_outputs=0, aliased_outputs=())
        return compile_parts(LoweredGraph(graph=graph, inputs=()), facts, identity)


def _refuse_lazy_bits(lowered: LoweredGraph, facts: GraphFacts) -> None:
    """Refuse inputs whose memory holds something else than their values: kernels read memory as it is.

    Inputs without such a bit have an artifact of their own: the bits are among its conditions.
    """
    for name, node in zip(facts.input_names, lowered.graph.graph.nodes, strict=False):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not (value.is_neg() or value.is_conj()):
            continue
        bit, remedy = ("negative", "resolve_neg()") if value.is_neg() else ("conjugate", "resolve_conj()")
        msg = (
            f"{name} has its {bit} bit set, which mode max-autotune does not support: pass {name}.{remedy}, "
            "or use mode reduce-overhead"
        )
        raise NotPortable(msg, what=name)


def _refuse_anchored(facts: GraphFacts) -> None:
    """Refuse inputs whose storage the graph looks at beyond the tensor: a library gets the tensor alone."""
    for index in facts.anchored_inputs:
        name = facts.input_names[index]
        msg = (
            f"as_strided looks at the storage of {name}, which mode max-autotune does not support: use views "
            "that stay inside of the tensor (view, narrow, unfold), or mode reduce-overhead"
        )
        raise NotPortable(msg, what=name)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Without what the caller of a cached function may have switched on."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
