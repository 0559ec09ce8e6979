"""Operators: what their schemas say of memory, and how generated source names them and their inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

from warmrank.worker.errors import NotPortable

if TYPE_CHECKING:
    from torch.fx import Node

FACTS = {
    "torch.fx.experimental.symbolic_shapes": "free_unbacked_symbols",
}

_LOCAL = re.compile(r"\bL\['([^']*)'\]")

DROPOUTS = frozenset(f"aten.{kind}dropout.default" for kind in ("", "feature_", "alpha_", "feature_alpha_"))


def readable(text: str) -> str:
    """Dynamo's names of arguments as a reader would write them: ``x`` for ``L['x']``."""
    return _LOCAL.sub(r"\1", text)


# What `torch.ops` is made of, by which an object is known to be an operator.
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
OperatorNamespace = torch._ops._OpNamespace
# Operators that write to running statistics although no schema says so, and the argument that, being False,
# tells them not to (empty: there is none).
_RUNNING = ("running_mean", "running_var")
_UPDATING = {
    "aten::batch_norm": "training",
    "aten::native_batch_norm": "training",
    "aten::cudnn_batch_norm": "training",
    "aten::miopen_batch_norm": "training",
    "aten::_batch_norm_impl_index": "training",
    "aten::instance_norm": "use_input_stats",
    "aten::batch_norm_update_stats": "",
    "aten::batch_norm_gather_stats": "",
    "aten::batch_norm_gather_stats_with_counts": "",
}


def dict_keys(mapping: dict[Any, Any]) -> list[Any]:
    """Keys in the order in which they were put there, whatever a subclass says.

    Of torch's registry of pytrees without those of DTensor, whose import, which Dynamo's brings, adds them.
    """
    keys = list(dict.keys(mapping))
    if mapping is not SUPPORTED_NODES:
        return keys
    return [key for key in keys if not key.__module__.startswith("torch.distributed.")]


def _schema_arguments(target: Any) -> Sequence[Any]:
    """The arguments in an operator's schema; none for whatever has no schema."""
    schema = getattr(target, "_schema", None)
    return () if schema is None else schema.arguments


def argument_name(target: Any, position: int) -> str:
    """The name of an operator's argument; empty where it has none."""
    arguments = _schema_arguments(target)
    return str(arguments[position].name) if position < len(arguments) else ""


def mutated_arguments(target: Any) -> tuple[int, ...]:
    """Positions of the arguments that an ATen operator may write to: by its schema, or known to be so."""
    unmarked = _RUNNING if schema_name(target) in _UPDATING else ()
    return tuple(
        position
        for position, argument in enumerate(_schema_arguments(target))
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in unmarked
    )


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Those of `mutated_arguments` that this call writes to; norms keep statistics in training only."""
    positions = mutated_arguments(target)
    switch = _UPDATING.get(schema_name(target))
    if not switch or argument_of(target, args, kwargs, switch) is not False:
        return positions
    return tuple(index for index in positions if argument_name(target, index) not in _RUNNING)


def schema_name(target: Any) -> str:
    """An operator's name without its overload (``aten::add``); empty for whatever has no schema."""
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name)


def aliased_arguments(target: Any) -> tuple[int, ...]:
    """Positions of the arguments that an operator's result may share memory with, from its schema."""
    return tuple(
        position
        for position, argument in enumerate(_schema_arguments(target))
        if argument.alias_info is not None
    )


def memory_of(value: Any) -> Iterator[int]:
    """Identities of the memory behind a traced value; its fake tensors share memory as the real ones do.

    Relies on ``UntypedStorage._cdata`` being equal for views of one tensor, fake ones included.
    """
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, torch.Tensor) and item.layout == torch.strided:
            yield item.untyped_storage()._cdata


def arguments_at(node: Node, positions: Iterable[int]) -> list[Any]:
    """Values of an operator's arguments by their places in its schema; defaults where the call gives none."""
    return [_given(node.target, node.args, node.kwargs, position) for position in positions]


def named_argument(node: Node, name: str) -> Any:
    """Value of an operator's argument by its schema's name; its default where the call does not give it."""
    return argument_of(node.target, node.args, node.kwargs, name)


def argument_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """As `named_argument`, of a call that is no node; None where the operator has no such argument."""
    for position, argument in enumerate(_schema_arguments(target)):
        if argument.name == name:
            return _given(target, args, kwargs, position)
    return None


def _given(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], position: int) -> Any:
    argument = _schema_arguments(target)[position]
    return args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)


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
