"""Operators: what their schemas say of memory, and how generated source names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from worker.errors import NotPortable


def mutated_arguments(target: Any) -> tuple[int, ...]:
    """Positions of the arguments that an ATen operator writes to, from its schema."""
    return tuple(
        position
        for position, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def aliased_arguments(target: Any) -> tuple[int, ...]:
    """Positions of the arguments that an operator's result may share memory with, from its schema."""
    return tuple(
        position
        for position, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None
    )


def memory_of(value: Any) -> Iterator[int]:
    """Identities of the memory behind a traced value; its fake tensors share memory as the real ones do.

    Relies on ``UntypedStorage._cdata`` being equal for views of one tensor, fake ones included.
    """
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, torch.Tensor) and item.layout == torch.strided:
            yield item.untyped_storage()._cdata


def named_argument(node: Any, name: str) -> Any:
    """Value of an operator's argument by its schema's name; its default where the call does not give it."""
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
            return argument.default_value if given is None else given
    return None


def size_depends_on_data(node: Any) -> bool:
    """Whether a node's result has a size that only the values of its inputs say.

    Relies on ``node.meta["val"]``, whose sizes are then unbacked symbols.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    value = node.meta.get("val")
    return value is not None and bool(free_unbacked_symbols(value))


def operator_path(target: Any) -> str:
    """``torch.ops`` path of an operator overload, for generated source.

    Raises:
        NotPortable: the target is a higher-order operator or something else without a stable name.
    """
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return f"torch.ops.{namespace}.{name}.{target._overloadname}"
    msg = f"the graph calls {target!r} ({type(target).__qualname__}), which has no portable name"
    raise NotPortable(msg, what=repr(target))
