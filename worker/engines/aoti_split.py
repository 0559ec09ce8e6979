"""Takes a graph apart: the *library*, which Inductor compiles, and the *tail*, which hands out the results.

Inductor makes a graph functional and plans memory anew, so a result that is a view (of an input, of another
result, of a constant) would lose what it shares. Therefore the library returns only tensors that own their
memory, each once; views, inputs, constants and sizes that the graph returns are made of them by the tail,
operator by operator, as eager does it.

Invariants: a result shares memory with exactly what it shares in eager; mutations stay in the library, whose
inputs are the caller's own tensors; both parts are pure functions of the graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node

from warmrank.worker.errors import NotPortable, NotYet
from warmrank.worker.graph_facts import DROPOUTS
from warmrank.worker.torch_private.operators import arguments_at, memory_of, mutated_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTEAD = 'use mode "reduce-overhead" (engine graph) for this function'


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The two parts of a graph.

    Attributes:
        library: the graph that Inductor compiles, over all inputs, or None where nothing is to be computed.
        tail: the graph of the results, over `tail_inputs` and then the library's results; None where the
            library's results are the graph's.
        tail_inputs: positions of the inputs that the tail needs.
        written: positions of the inputs that the library writes to.
    """

    library: GraphModule | None
    tail: GraphModule | None
    tail_inputs: tuple[int, ...]
    written: tuple[int, ...]


def divide(graph: GraphModule) -> Division:
    """Take ``graph`` apart.

    Raises:
        NotPortable: it changes the shape of a tensor in place.
        NotYet: it uses a process group.
    """
    _refuse(graph)
    tail = _Tail(graph)
    library = _library(graph, tail.bases)
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    memory = set() if library is None else set(_written(library))
    return Division(
        library=library,
        tail=None if tail.is_identity else tail.module,
        tail_inputs=tuple(inputs.index(node) for node in tail.inputs),
        written=tuple(
            index for index, node in enumerate(inputs) if memory & set(memory_of(node.meta.get("val")))
        ),
    )


def _refuse(graph: GraphModule) -> None:
    for node in graph.graph.nodes:
        target = str(node.target)
        if node.op != "call_function":
            continue
        if "c10d" in target:
            raise NotYet(f"process groups in mode max-autotune ({target})", instead=_INSTEAD)
        if torch.Tag.inplace_view in getattr(node.target, "tags", ()) and target != "aten.detach_.default":
            where = (node.stack_trace or "").strip() or "unknown line"
            msg = (
                f"{target} changes the shape of a tensor in place, which no compiled library can:\n{where}\n"
                f"Use the operator that returns a view instead, or {_INSTEAD}."
            )
            raise NotPortable(msg, what=target)


def _written(graph: GraphModule) -> Iterator[int]:
    """Identities of the memory that operators of a graph write to."""
    for node in graph.graph.nodes:
        for value in arguments_at(node, mutated_arguments(node.target)):
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Node):
                    yield from memory_of(item.meta.get("val"))


@dataclass(slots=True)
class _Tail:
    """Makes the tail; collects what it needs of the library and of the inputs on the way."""

    source: GraphModule
    bases: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    module: GraphModule = field(init=False)
    is_identity: bool = field(init=False)

    def __post_init__(self) -> None:
        (results,) = next(node for node in self.source.graph.nodes if node.op == "output").args
        order = self._needed(results)
        self.is_identity = list(results) == self.bases and not self.inputs
        graph = Graph()
        made: dict[Node, Node] = {}
        for node in [*self.inputs, *self.bases]:
            made[node] = graph.placeholder(f"of_{node.name}")
        for node in order:
            written = _written_argument(node)
            made[node] = graph.node_copy(node, made.__getitem__) if written is None else made[written]
        graph.output(torch.fx.node.map_arg(results, made.__getitem__))
        self.module = GraphModule(self.source, graph)

    def _needed(self, results: Any) -> list[Node]:
        """What the tail computes, in the order of the graph."""
        needed: set[Node] = set()
        waiting = [value for value in results if isinstance(value, Node)]
        while waiting:
            node = waiting.pop()
            if node in needed or node in self.bases or node in self.inputs:
                continue
            if node.op == "placeholder":
                self.inputs.append(node)
            elif node.op == "get_attr":
                needed.add(node)
            elif (written := _written_argument(node)) is not None:
                needed.add(node)
                waiting.append(written)
            elif _is_tensor(node) and not _is_view(node):
                self.bases.append(node)
            else:
                needed.add(node)
                waiting.extend(node.all_input_nodes)
        # In the order of the graph, so that equal graphs have equal parts however they were walked.
        position = {node: index for index, node in enumerate(self.source.graph.nodes)}
        self.bases.sort(key=position.__getitem__)
        self.inputs.sort(key=position.__getitem__)
        return sorted(needed, key=position.__getitem__)


def _is_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        return any(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def _is_view(node: Node) -> bool:
    """Whether a node's result lies in the memory of one of its arguments, as traced."""
    if node.target is operator.getitem:
        # Of an operator with several results, each owns its memory unless the operator as a whole is a view.
        return _is_view(node.args[0])  # type: ignore[arg-type]
    if str(node.target) in DROPOUTS:
        return True  # those that draw are refused; the others return their argument, which no trace shows
    mine = set(memory_of(node.meta.get("val")))
    return any(mine & set(memory_of(argument.meta.get("val"))) for argument in node.all_input_nodes)


def _written_argument(node: Node) -> Node | None:
    """What an operator that writes to its argument and returns it (``add_``) returns; None for all others."""
    mine = set(memory_of(node.meta.get("val")))
    for value in arguments_at(node, mutated_arguments(node.target)):
        if isinstance(value, Node) and mine & set(memory_of(value.meta.get("val"))):
            return value
    return None


def _library(source: GraphModule, bases: list[Node]) -> GraphModule | None:
    """The graph with other results, without what nobody needs; None where nothing is left of it."""
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in source.graph.nodes:
        if node.op == "output":
            graph.output(tuple(made[base] for base in bases))
        elif str(node.target) in DROPOUTS:
            made[node] = made[node.args[0]]
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.eliminate_dead_code()
    if not bases and not any(node.op == "call_function" for node in graph.nodes):
        return None
    return GraphModule(source, graph)
