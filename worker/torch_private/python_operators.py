"""Operators that are written in Python: the files that decide on a graph and that no tracer sees.

Dynamo calls an operator and does not look into it. What runs while a graph is lowered leaves its mark there
all the same: a kernel for all devices (``CompositeImplicitAutograd``) is taken apart into its operators, and
the shapes that a fake kernel answers become part of the code. What runs on a device is called anew each time.

What is relied on (torch 2.11 to 2.13):

* ``torch._C._dispatch_dump(name)`` has a line ``<key>: registered at <file>:<line> :: ...`` for each kernel;
* ``torch._library.simple_registry.singleton.find(name).fake_impl.kernel.source`` is ``<file>:<line>``, or
  ``kernel`` is None;
* ``torch._library.custom_ops.OPDEFS`` has the definition of every ``custom_op`` and ``triton_op`` by name,
  and in ``_init_fn`` its function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule

FACTS = {
    "torch._C": "_dispatch_dump",
    "torch._library.simple_registry:singleton": "find",
    "torch._library.custom_ops": "OPDEFS",
}

_KERNEL = re.compile(r"^(\w+)(?:\[\w+\])?: registered at (.+):\d+ ::", re.MULTILINE)
_WHILE_LOWERING = re.compile(r"CompositeImplicitAutograd|Meta|Fake|Autograd\w*|ADInplaceOrView|Python\w*")
_OF_TORCH = (
    "aten::",
    "prims::",
    "prim::",
    "c10d::",
    "_c10d_functional::",
    "c10d_functional::",
    "higher_order::",
)


def files_of(graph_module: GraphModule) -> frozenset[str]:
    """Names of the Python files that define what operators of a graph do while it is lowered."""
    return frozenset(
        file
        for name in {name for name in _operators(graph_module) if not name.startswith(_OF_TORCH)}
        for file in _files_of(name)
        if file.endswith(".py") or file.startswith("<")
    )


def _operators(graph_module: GraphModule) -> Iterator[str]:
    """Names of the operators, with their overloads (``aten::add.Tensor``)."""
    for part in graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            target: Any = node.target
            if type(target) is torch._ops.OpOverload:
                yield target.name()  # type: ignore[no-untyped-call]
            elif type(target) is torch._ops.OpOverloadPacket:
                yield from (getattr(target, overload).name() for overload in target.overloads())  # type: ignore[no-untyped-call]


def _files_of(name: str) -> Iterator[str]:
    for key, file in _KERNEL.findall(torch._C._dispatch_dump(name)):
        if _WHILE_LOWERING.fullmatch(key):
            yield file
    kernel = torch._library.simple_registry.singleton.find(name).fake_impl.kernel
    if kernel is not None:
        yield kernel.source.rpartition(":")[0]
    definition = torch._library.custom_ops.OPDEFS.get(name)
    if definition is not None:
        yield definition._init_fn.__code__.co_filename
