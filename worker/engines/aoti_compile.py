"""The compile of engine ``aoti``: divide the graph, bind its inputs, let Inductor compile the library.

Inductor makes a graph functional and plans memory anew, so a result that is a view (of an input, of another
result, of a constant) would lose what it shares. Therefore the *library* returns only tensors that own
their memory, each once; the *tail* makes of them the views, inputs, constants and sizes that the graph
returns, operator by operator, as eager does. Mutations stay in the library, whose inputs are the caller's
own tensors; both parts are pure functions of the graph.

A library holds the path it was made at, so all processes of a user compile in ``/tmp/warmrank-aoti-<uid>/
<digest of what is compiled>/``, with a lock beside it, and ``inductor`` beside it for precompiled headers.
"""

from __future__ import annotations

import contextlib
import operator
import shutil
from collections.abc import Iterator, Mapping
from os import geteuid
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch.fx import Graph, GraphModule, Node

from warmrank.cache_store.cache_dir.private_files import check_status, os_errors_are_unusable
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.errors import NotPortable, NotYet
from warmrank.worker.keys.request import instruction_set
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.settings import settings
from warmrank.worker.torch_private import lowering, operators
from warmrank.worker.torch_private.inductor import compile_library
from warmrank.worker.values import Value

# Owner and mode are checked; TMPDIR would differ between processes.
ROOT = Path(f"/tmp/warmrank-aoti-{geteuid()}")  # noqa: S108
_INSTEAD = 'use mode "reduce-overhead" (engine graph) for this function'


@contextlib.contextmanager
def compile_place(digest: str, root: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """An empty directory for the compile of what has this digest, held alone; and one that compiles share.

    Raises `UnusableCache`: the root is another user's, or others can write to it.
    """
    root = ROOT if root is None else root
    with os_errors_are_unusable("directory", root):
        root.mkdir(mode=0o700, exist_ok=True)
        remedy = (f"remove {root}", "chmod 700")
        check_status(root, root.lstat(), what="directory of compiles", remedy=remedy, directory=True)
    # The lock is the kernel's: a holder that died is no holder.
    with contextlib.ExitStack() as stack:
        stack.enter_context(FileLock(root / f"{digest}.lock", mode=0o600, fallback_to_soft=False))
        directory, shared = root / digest, root / "inductor"
        shutil.rmtree(directory, ignore_errors=True)  # of a process that was killed
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        shared.mkdir(mode=0o700, exist_ok=True)
        yield directory, shared


# Operators that change a tensor's shape in place, and those that return a view instead.
_VIEWS = {
    f"aten.{changing}": getattr(getattr(torch.ops.aten, view), overload)
    for changing, view, overload in (
        ("as_strided_.default", "as_strided", "default"),
        ("squeeze_.default", "squeeze", "default"),
        ("squeeze_.dim", "squeeze", "dim"),
        ("squeeze_.dims", "squeeze", "dims"),
        ("swapaxes_.default", "swapaxes", "default"),
        ("swapdims_.default", "swapdims", "default"),
        ("t_.default", "t", "default"),
        ("transpose_.default", "transpose", "int"),
        ("unsqueeze_.default", "unsqueeze", "default"),
    )
}
# An assertion that Inductor leaves out: the overload that it keeps, and what that says more.
_SAID = {"aten._assert_async.default": ("msg", "expected a nonzero value")}


class Division(Value):
    """The two parts of a graph."""

    library: GraphModule | None  # over all inputs; None where nothing is to be computed
    tail: GraphModule | None  # over its inputs and the library's results; None where these are the results
    tail_inputs: tuple[int, ...]  # positions of the inputs that the tail needs
    written: tuple[int, ...]  # positions of the inputs that the library writes to


def divide(graph: GraphModule) -> Division:
    """Take ``graph`` apart.

    Raises:
        NotPortable: it changes the shape of an input in place, calls an operator for its effect alone, or
            writes through ``unfold``.
        NotYet: it uses a process group.
    """
    for node in graph.graph.nodes:
        if "c10d" in str(node.target):
            raise NotYet(f"process groups in mode max-autotune ({node.target})", instead=_INSTEAD)
        is_left_out = node.op == "call_function" and lowering.has_effect(node) and not node.is_impure()
        if is_left_out and str(node.target) not in _SAID:
            msg = (
                f"{node.target} returns nothing, so compiled kernels leave it out:\n"
                f"{lowering.line_of(node)}\nReturn a tensor from it that is used, or {_INSTEAD}."
            )
            raise NotPortable(msg, what=str(node.target))
    _refuse_writes_to_windows(graph)
    graph = _with_new_views(graph)
    (results,) = next(node for node in graph.graph.nodes if node.op == "output").args
    inputs, bases, order = _needed_by_tail(graph, results)
    library = _library_of(graph, bases)
    changed = [
        target
        for node in (library.graph.nodes if library is not None else ())
        for target in operators.nodes_at(node, operators.mutated_arguments(node.target))
    ]
    written = set().union(*map(operators.storage_ids, changed))
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    is_identity = list(results) == bases and not inputs
    return Division(
        library=library,
        tail=None if is_identity else _tail_of(graph, results, [*inputs, *bases], order),
        tail_inputs=tuple(placeholders.index(node) for node in inputs),
        written=tuple(
            index for index, node in enumerate(placeholders) if written & operators.storage_ids(node)
        ),
    )


def _refuse_writes_to_windows(graph: GraphModule) -> None:
    """Refuse a write through ``unfold``: AOTAutograd makes zeros of what lies between the windows."""
    windows: set[Node] = set()
    for node in graph.graph.nodes:
        if not windows.isdisjoint(operators.nodes_at(node, operators.mutated_arguments(node.target))):
            msg = (
                f"{node.target} writes through unfold, as no compiled library can:\n{lowering.line_of(node)}"
                f"\nWrite by indexes or slices instead, or {_INSTEAD}."
            )
            raise NotPortable(msg, what="aten.unfold.default")
        is_view_of_them = not windows.isdisjoint(node.all_input_nodes) and _is_view(node)
        if str(node.target) == "aten.unfold.default" or is_view_of_them:
            windows.add(node)


def _with_new_views(graph: GraphModule) -> GraphModule:
    """The graph, or a copy with a view for each tensor of its own whose shape it changes in place."""
    if not any(map(_changes_shape, graph.graph.nodes)):
        return graph
    made = Graph()
    present: dict[Node, Node] = {}  # what a node's tensor is by now, in the copy
    owner: dict[Node, Node] = {}  # the node that made the tensor which a node returns once more
    for node in graph.graph.nodes:
        owner[node] = owner[node.args[0]] if operators.returns_its_input(node.target) else node
        copied = made.node_copy(node, present.__getitem__)
        if _changes_shape(node):
            if owner[node].op != "call_function" or str(node.target) not in _VIEWS:
                msg = (
                    f"{node.target} changes the shape of a tensor in place, which no compiled library can:\n"
                    f"{lowering.line_of(node)}\nUse the operator that returns a view instead, or {_INSTEAD}."
                )
                raise NotPortable(msg, what=str(node.target))
            copied.target = _VIEWS[str(node.target)]
            present |= {other: copied for other, first in owner.items() if first is owner[node]}
        present[node] = copied
    return GraphModule(graph, made)


def _changes_shape(node: Node) -> bool:
    is_change = torch.Tag.inplace_view in getattr(node.target, "tags", ())
    return node.op == "call_function" and is_change and str(node.target) != "aten.detach_.default"


def _needed_by_tail(graph: GraphModule, results: Any) -> tuple[list[Node], list[Node], list[Node]]:
    """Inputs and library results that the tail needs, and the nodes it computes; all in the graph's order."""
    inputs: list[Node] = []
    bases: list[Node] = []
    needed: set[Node] = set()
    waiting = [value for value in results if isinstance(value, Node)]
    while waiting:
        node = waiting.pop()
        if node in needed or node in bases or node in inputs:
            continue
        if node.op == "placeholder":
            inputs.append(node)
        elif node.op != "get_attr" and (written := _written_argument(node)) is not None:
            needed.add(node)
            waiting.append(written)
        elif node.op != "get_attr" and _is_tensor(node) and not _is_view(node):
            bases.append(node)
        else:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    # So equal graphs have equal parts however they were walked.
    position = {node: index for index, node in enumerate(graph.graph.nodes)}.__getitem__
    return sorted(inputs, key=position), sorted(bases, key=position), sorted(needed, key=position)


def _tail_of(source: GraphModule, results: Any, given: list[Node], order: list[Node]) -> GraphModule:
    graph = Graph()
    made: dict[Node, Node] = {node: graph.placeholder(f"of_{node.name}") for node in given}
    for node in order:
        written = _written_argument(node)
        made[node] = graph.node_copy(node, made.__getitem__) if written is None else made[written]
    graph.output(torch.fx.node.map_arg(results, made.__getitem__))
    return GraphModule(source, graph)


def _is_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    items = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(item, torch.Tensor) for item in items)


def _is_view(node: Node) -> bool:
    """True if a node's result lies in the memory of one of its arguments, as traced."""
    if node.target is operator.getitem:
        # Of an operator with several results, each owns its memory unless the operator as a whole is a view.
        return _is_view(node.args[0])  # type: ignore[arg-type]
    if str(node.target) in operators.DROPOUTS:
        return True  # those that draw are refused; the others return their argument, which no trace shows
    mine = operators.storage_ids(node)
    return any(mine & operators.storage_ids(argument) for argument in node.all_input_nodes)


def _written_argument(node: Node) -> Node | None:
    """The argument that an operator writes to and returns (``add_``, items of ``sort``); None for others."""
    mine = operators.storage_ids(node)
    writing: Any = node.args[0] if node.target is operator.getitem else node
    for value in operators.arguments_at(writing, operators.mutated_arguments(writing.target)):
        if isinstance(value, Node) and mine & operators.storage_ids(value):
            return value
    return None


def _library_of(source: GraphModule, bases: list[Node]) -> GraphModule | None:
    """The graph with other results, without dead code; None where nothing is left of it."""
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in source.graph.nodes:
        if node.op == "output":
            graph.output(tuple(made[base] for base in bases))
        elif str(node.target) in operators.DROPOUTS:
            made[node] = made[node.args[0]]
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            if str(node.target) in _SAID:
                overload, text = _SAID[str(node.target)]
                made[node].target = getattr(node.target.overloadpacket, overload)
                made[node].args = (*made[node].args, text)
    graph.eliminate_dead_code()
    if not bases and not any(node.op == "call_function" for node in graph.nodes):
        return None
    return GraphModule(source, graph)


def compile_parts(
    lowered: lowering.LoweredGraph, facts: GraphFacts, digest: str
) -> tuple[Mapping[str, bytes], Mapping[str, bytes], dict[str, Any]]:
    """Compile a traced graph, within its tracing context; ``digest`` names it.

    Returns:
        Files of the library, and the tail's sections, as engine ``graph`` names them; each empty where there
        is none; and how to call both, which goes into the artifact.

    Raises:
        NotPortable: it cannot be compiled.
        NotYet: it uses a process group.
    """
    graph = lowered.graph
    division = divide(graph)
    call: dict[str, Any] = {"tensors": [], "numbers": [], "constants": []}
    call |= {"tail_inputs": list(division.tail_inputs), "written": list(division.written)}
    tail: Mapping[str, bytes] = {}
    if division.tail is not None:
        tail = GraphEngine().compile(lowering.LoweredGraph(graph=division.tail, inputs=()), facts).sections
    if division.library is None:
        return {}, tail, call
    # Constants in the order in which engine graph keeps them.
    order = list(dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "get_attr"))
    with compile_place(digest) as (directory, cache), lowering.operators_as_they_are():
        library = compile_library(
            division.library,
            directory=directory,
            cache=cache,
            march=instruction_set()[0],
            compiler=settings().compiler,
        )
    call["tensors"], call["numbers"] = list(library.tensors), list(library.numbers)
    call["constants"] = [order.index(name) for name in library.constants]
    return library.files, tail, call


def refuse_inputs(lowered: lowering.LoweredGraph, facts: GraphFacts) -> None:
    """Reject tensors whose raw storage differs from their values, or whose storage is read beyond them.

    Inputs without a lazy bit have an artifact of their own: the bits are among its conditions.

    Raises:
        NotPortable: names the input.
    """
    if unlike := operators.unlike_memory(lowered.graph.graph.nodes):
        raise NotPortable(f"{unlike}, which mode max-autotune does not support; {_INSTEAD}", what=unlike)
    for name, node in zip(facts.input_names, lowered.graph.graph.nodes, strict=False):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout != torch.strided:
            msg = f"{name} has layout {value.layout}, which no library can take; use mode reduce-overhead"
            raise NotPortable(msg, what=str(value.layout))
        if value.is_neg() or value.is_conj():
            bit, remedy = ("negative", "resolve_neg()") if value.is_neg() else ("conjugate", "resolve_conj()")
            msg = (
                f"{name} has its {bit} bit set, which mode max-autotune does not support: pass "
                f"{name}.{remedy}, or use mode reduce-overhead"
            )
            raise NotPortable(msg, what=name)
    for index in facts.anchored_inputs:
        name = facts.input_names[index]
        msg = (
            f"as_strided looks at the storage of {name}, which mode max-autotune does not support: use views "
            "that stay inside of the tensor (view, narrow, unfold), or mode reduce-overhead"
        )
        raise NotPortable(msg, what=name)
