"""What the schema and the name of an operator say about repeating it on fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from warmrank.worker.errors import NotCapturable
from warmrank.worker.torch_private.operators import argument_of, mutated_arguments

_RESIZING = frozenset({"resize_", "resize_as_", "resize_as_sparse_", "set_", "_resize_output_"})
# What has no lasting effect: memory without values, and checks of sizes, which do not change.
_IDLE = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "_assert_tensor_metadata",
    }
)
_MASKED = frozenset({"index", "_unsafe_index"})
_COLLECTIVES = frozenset({"_c10d_functional", "c10d_functional"})
_PROBABILITIES = ("dropout", "dropout_p", "p", "train", "training")
RANDOM = "draws random numbers"
REFUSED_TAGS = {
    torch.Tag.nondeterministic_seeded: RANDOM,
    torch.Tag.data_dependent_output: "hands a value of a tensor to Python",
    torch.Tag.dynamic_output_shape: "makes a result whose size depends on values",
}


class Traits(NamedTuple):
    """What the schema and the name of an overload say.

    Attributes:
        written: where the arguments that it writes to stand: positions, or names of keyword-only ones.
        refused: why it cannot be recorded; empty if it can.
        changes_metadata: it changes the layout of its first argument, and no memory.
        returns: it returns something.
        views: it returns views of its arguments.
        idle: calling it again has no effect.
        masked: its second argument may hold masks, by which the size of the result depends on values.
        collective: see `Operation`.
    """

    written: tuple[str | int, ...] = ()
    refused: str = ""
    changes_metadata: bool = False
    returns: bool = True
    views: bool = False
    idle: bool = False
    masked: bool = False
    collective: bool = False


def traits_of(func: Any) -> Traits:
    """The traits of an overload, or of whatever else arrives at a dispatch mode."""
    if not isinstance(func, torch._ops.OpOverload):
        return Traits(refused="is a higher-order operator")
    namespace, _, name = func._schema.name.partition("::")
    aten, collective = namespace == "aten", namespace in _COLLECTIVES
    masked = aten and name in _MASKED
    # An index operator has the tag for masks' sake, which are seen in its arguments.
    reasons = [reason for tag, reason in REFUSED_TAGS.items() if tag in func.tags and not masked]
    if aten and name in _RESIZING:
        reasons.append("changes the memory behind a tensor")
    if namespace == "c10d":
        reasons.append("is a collective that is not functional")
    arguments, returns = func._schema.arguments, func._schema.returns
    return Traits(
        written=tuple(
            arguments[position].name if arguments[position].kwarg_only else position
            for position in mutated_arguments(func)
        ),
        refused="; ".join(reasons),
        changes_metadata=torch.Tag.inplace_view in func.tags,
        returns=bool(returns),
        views=any(item.alias_info is not None and not item.alias_info.is_write for item in returns),
        # A collective is waited for where it is called.
        idle=(aten and name in _IDLE) or (collective and name == "wait_tensor"),
        masked=masked,
        collective=collective,
    )


def draws_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a seeded operator is told not to draw: probability zero, or not training."""
    told = (argument_of(func, args, kwargs, name) for name in _PROBABILITIES)
    # A probability in a tensor may be another one in the next call.
    return any(isinstance(value, int | float) and not value for value in told)


def refusal(func: Any, why: str) -> NotCapturable:
    """The error that names the operator and the remedy."""
    msg = (
        f"operator {func} {why}, so it cannot be captured; leave it out of the cached function, or run the "
        "function without capture (debug.run_eagerly)"
    )
    return NotCapturable(msg, operator=str(func), why=why)


def is_mask(index: Any) -> bool:
    """Whether an index selects as many elements as it has true ones."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
