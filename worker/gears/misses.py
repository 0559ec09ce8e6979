"""A shape that is no gear: refused with all that one needs to know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from warmrank.worker.errors import GearError
from warmrank.worker.gears.carried import carried
from warmrank.worker.gears.model import Combination, GearFacts, hold
from warmrank.worker.runtime.options import OnGearMiss
from warmrank.worker.torch_private.operators import readable

_SHOWN = 12


def condition_text(gears: GearFacts, condition: str) -> str:
    """A condition on symbols as a reader would write it."""
    for axis in gears.axes:
        condition = re.sub(rf"\b{axis.symbol}\b", f"{axis.source}.size({axis.dim})", condition)
    return readable(condition)


def refuse_miss(gears: GearFacts, sizes: Combination, on_miss: OnGearMiss) -> None:
    """Refuse sizes that no gear stands for.

    Raises:
        GearError: it names the inputs, dimensions and sizes, what is allowed, and what to do.
    """
    combinations = gears.combinations
    if sizes in combinations or (on_miss == "pad" and gears.gear_of(sizes)):
        return
    found = ", ".join(
        f"{readable(axis.source)} dimension {axis.dim} is {size}"
        for axis, size in zip(gears.axes, sizes, strict=True)
    )
    why = ""
    values = dict(zip((axis.symbol for axis in gears.axes), sizes, strict=True))
    unmet = hold(gears.conditions, values)
    if unmet:
        why = f" What was compiled asks for {condition_text(gears, unmet)}, which does not hold for them."
    shown = ", ".join(map(str, combinations[:_SHOWN])) + (", ..." if len(combinations) > _SHOWN else "")
    msg = f"no gear for these sizes: {found}; allowed combinations: {shown}.{why} {_remedy(on_miss)}"
    raise GearError(msg, sizes=sizes, allowed=combinations)


def _remedy(on_miss: OnGearMiss) -> str:
    if on_miss == "pad":
        return (
            "Padding only goes up to a larger gear, where the code is the same for both sizes: give "
            "set_dim_gears a gear that is as large as this."
        )
    return (
        "Pad the inputs to a gear, give set_dim_gears a gear of this size, or let cache_compile pad "
        '(on_gear_miss="pad", for functions whose rows do not depend on each other).'
    )


def refuse_arguments(geared: Sequence[tuple[str, Any]], on_miss: OnGearMiss, policy: str) -> None:
    """Refuse, before anything is traced, tensors whose own sizes are none of the gears that they carry.

    Raises:
        GearError: it names tensor, dimension and size, the gears, and what to do.
    """
    for where, tensor in geared:
        for dim, gears in (carried(tensor) or {}).items():
            size = tensor.shape[dim]
            if size in gears or (on_miss == "pad" and size <= max(gears)):
                continue
            msg = (
                f"{where}: dimension {dim} is {size}, which is none of its gears {gears} (merged by "
                f"{policy!r}). {_remedy(on_miss)}"
            )
            raise GearError(msg, input=where, dim=str(dim), found=str(size), allowed=repr(gears))
