"""Facts of a traced graph that the runtime must know: what it writes to, returns, draws and depends on.

Operators that draw random numbers are refused, or with ``rng="allow"`` kept, on the graph's own device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import RandomOp
from warmrank.worker.runtime.artifact import MUTATED, NUMBER, STATE, USER, GraphFacts, readable
from warmrank.worker.settings import kind_of
from warmrank.worker.torch_private import lowering, operators
from warmrank.worker.torch_private.recording import draws_nothing

if TYPE_CHECKING:
    from torch.fx import Node

    from warmrank.worker.torch_private.lowering import LoweredGraph

# They count from the beginning of the storage, and reach beyond the tensor's own elements.
_ABSOLUTE = frozenset(f"aten::as_strided{kind}" for kind in ("", "_", "_copy", "_scatter"))

_MOVING = frozenset({"aten::shallow_copy_data_"})  # ``x.data = y`` from torch 2.15 on, without the tag


def analyse(lowered: LoweredGraph, self_name: str, *, random_on: str = "") -> GraphFacts:
    """Facts of a traced graph; ``self_name`` is the name by which the traced function knows its module.

    A user input that an output shares memory with counts as ``state``: it must not be cloned, or the
    caller would hold a view of the clone. So does one that `as_strided` looks at, because a clone holds
    nothing of the memory around it. A tensor of the module that each call puts another one in place of is a
    user input. Random numbers may be drawn on devices of kind ``random_on``;
    empty: nowhere.

    Raises:
        RandomOp: an operator draws random numbers.
    """
    aliases: dict[Node, frozenset[int]] = {}
    owners: dict[int, set[int]] = {}
    mutated: set[int] = set()
    anchored: set[int] = set()
    returned: list[Any] = []
    data_dependent = random = ""
    position = 0
    lowering.refuse_writes_within(lowered.graph)
    for node in lowering.nodes_within(lowered.graph):
        draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        draws = draws and node.op == "call_function"
        if draws and not draws_nothing(node.target, node.args, node.kwargs):
            _refuse_random(node, random_on)
            random = random or str(node.target)
    for node in lowered.graph.graph.nodes:
        if node.op == "placeholder":
            aliases[node] = frozenset((position,))
            for memory in operators.storage_ids(node):
                owners.setdefault(memory, set()).add(position)
            position += 1
        elif node.op == "call_function":
            # Composite operators say nothing in their schemas (`einsum`): the traced memory is asked, too.
            # Dropout that does not draw returns its argument, which its trace does not show.
            shared = (owners.get(memory, ()) for memory in operators.storage_ids(node))
            drops = str(node.target) in operators.DROPOUTS
            behind = operators.nodes_at(node, (0,)) if drops else operators.aliased_arguments(node)
            aliases[node] = _inputs_behind(behind, aliases).union(*shared)
            written = operators.written_arguments(node.target, node.args, node.kwargs)
            mutated |= _inputs_behind(operators.nodes_at(node, written), aliases)
            if operators.schema_name(node.target) in _ABSOLUTE:
                anchored |= _inputs_behind(operators.nodes_at(node, (0,)), aliases)
            if not data_dependent and (
                lowering.higher_order_name(node.target) or operators.size_depends_on_data(node)
            ):
                data_dependent = str(node.target)
        elif node.op == "output":
            returned = list(node.args[0])
    returned_inputs = [_inputs_behind([value] if hasattr(value, "op") else [], aliases) for value in returned]
    in_place = anchored.union(*returned_inputs)
    prefix = f"L[{self_name!r}]"
    replaced = tuple(f"{path}{mark}" for path in lowered.replaced for mark in (".", "["))
    of_module = {
        index
        for index, item in enumerate(lowered.inputs)
        if item.is_tensor
        and item.source.startswith(prefix)
        and not (item.source in lowered.replaced or item.source.startswith(replaced))
    }
    kept = of_module | in_place
    classes = tuple(
        NUMBER if not item.is_tensor else MUTATED if index in mutated else STATE if index in kept else USER
        for index, item in enumerate(lowered.inputs)
    )
    return GraphFacts(
        input_classes=classes,
        num_outputs=len(returned),
        aliased_outputs=tuple(
            index
            for index, sources in enumerate(returned_inputs)
            if any(classes[source] != NUMBER for source in sources)
        ),
        data_dependent=data_dependent,
        random=random,
        input_names=tuple(readable(item.source) for item in lowered.inputs),
        module_inputs=tuple(sorted(of_module)),
        anchored_inputs=tuple(sorted(anchored)),
        moving=_moving(lowered.graph.graph.nodes),
        stored_outputs=lowered.stored,
    )


def _moving(nodes: Iterable[Node]) -> str:
    """The first operator that puts other memory behind an input; empty if there is none."""
    for node in nodes:
        tags = getattr(node.target, "tags", ())
        is_moving = torch.Tag.inplace_view in tags or operators.schema_name(node.target) in _MOVING
        if node.op == "call_function" and is_moving and getattr(node.args[0], "op", "") == "placeholder":
            return str(node.target)
    return ""


def _inputs_behind(nodes: Iterable[Node], aliases: dict[Node, frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*(aliases.get(node, frozenset()) for node in nodes))


def _refuse_random(node: Node, allowed_on: str) -> None:
    """Refuse an operator that draws random numbers, unless on the kind of device that is allowed."""
    items = operators.as_list(node.meta.get("val"))
    kinds = {kind_of(item.device.type) for item in items if isinstance(item, torch.Tensor)}
    if allowed_on and allowed_on in kinds:
        return
    where = lowering.line_of(node)
    if allowed_on:
        msg = (
            f"operator {node.target} draws random numbers on another device than {allowed_on}, which a "
            f"captured graph would repeat:\n{where}\nDraw them on {allowed_on}."
        )
    else:
        msg = (
            f"operator {node.target} draws random numbers, which a cached graph does not support:\n{where}\n"
            'Move it out of the cached function, pass rng="allow", or (dropout) call eval() on the module.'
        )
    raise RandomOp(msg, operator=str(node.target), where=where)
