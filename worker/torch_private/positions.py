"""Indexing by a tensor without dimensions (``cache[:, position]``), and by a number that one holds.

Torch traces neither beside other indexes, because eager asks for the value. A read stays the view that it is
in eager, so its graph asks for the value, too, and is not captured. A write of other data becomes an operator
that takes the position where it runs: one captured graph serves all positions.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import ListVariable, SliceVariable, TensorVariable, TupleVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx import Node

from warmrank.worker.torch_private.operators import memory_of
from warmrank.worker.torch_private.patching import steps_in

_DTYPES: Final = (torch.int64, torch.int32)


class Positions:
    """Steps in where Dynamo traces an index."""

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function(tx, args, kwargs)")
    def _get(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        found = _Index.of(tx, *args) if variable.fn is operator.getitem and len(args) == 2 else None
        return original(variable, tx, args, kwargs) if found is None else found.read()

    @steps_in("torch._dynamo.variables:TensorVariable", "method___setitem__")
    def _set(self, original: Any, variable: Any, *call: Any) -> Any:
        found = _Index.of(InstructionTranslator.current_tx(), variable, call[-2])
        return original(variable, *call) if found is None else found.write(call[-1].realize())


class _Index:
    """An index of a tensor with positions in it, each by its dimension of ``view``, which takes all there."""

    def __init__(self, tx: Any, view: TensorVariable, positions: list[VariableTracker | None]) -> None:
        self.tx, self.view, self.positions = tx, view, positions

    @classmethod
    def of(cls, tx: Any, base: VariableTracker, index: VariableTracker) -> _Index | None:
        """None for any other index, also for one beside other tensors."""
        base = base.realize()
        if type(base) is not TensorVariable:  # not an array of NumPy's, either
            return None
        index = index.realize()
        items = [item.realize() for item in index.items] if isinstance(index, TupleVariable) else [index]
        is_alone = len(items) == 1 and isinstance(items[0], SymNodeVariable)  # which torch traces
        if is_alone or not any(map(_is_position, items)) or not all(map(_is_known, items)):
            return None
        everything = ConstantVariable.create(None)
        whole = [SliceVariable([everything] * 3) if _is_position(item) else item for item in items]
        taken = sum(not _is(item, None, ...) for item in items)
        positions: list[VariableTracker | None] = []
        for item in items:
            if _is(item, ...):
                positions += [None] * (_example(base).dim() - taken)
            elif _is_position(item):
                positions.append(item)
            elif isinstance(item, SliceVariable) or _is(item, None):
                positions.append(None)
        view = VariableTracker.build(tx, operator.getitem).call_function(tx, [base, TupleVariable(whole)], {})
        return cls(tx, view, positions)

    def read(self) -> Any:
        """A view of the elements there."""
        made: Any = self.view
        select = VariableTracker.build(self.tx, torch.select)
        for dim, position in reversed(list(enumerate(self.positions))):
            if position is not None:
                is_tensor = isinstance(position, TensorVariable)
                value = position.call_method(self.tx, "item", [], {}) if is_tensor else position
                made = select.call_function(self.tx, [made, ConstantVariable.create(dim), value], {})
        return made

    def write(self, value: VariableTracker) -> VariableTracker:
        """Fill it with a tensor or a number."""
        tx, like = self.tx, _example(self.view)
        as_like = {name: VariableTracker.build(tx, getattr(like, name)) for name in ("dtype", "device")}
        if not isinstance(value, TensorVariable):
            full = VariableTracker.build(tx, torch.full)
            value = full.call_function(tx, [TupleVariable([]), value], as_like)
        is_own = set(memory_of(like)).intersection(memory_of(_example(value)))
        if is_own or any(isinstance(position, SymNodeVariable) for position in self.positions):
            self.read().call_method(tx, "copy_", [value], {})
        else:
            indices = [position or ConstantVariable.create(None) for position in self.positions]
            value = value.call_method(tx, "to", [], as_like)
            put = VariableTracker.build(tx, torch.ops.aten.index_put_.default)
            put.call_function(tx, [self.view, ListVariable(indices), value], {})
        return ConstantVariable.create(None)


def _example(variable: Any) -> Any:
    return variable.as_proxy().node.meta["example_value"]


def _is_position(item: Any) -> bool:
    if isinstance(item, SymNodeVariable):
        return _is_of_data(item.as_proxy().node)
    value = _example(item) if type(item) is TensorVariable else None
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _DTYPES


def _is_of_data(node: Node) -> bool:
    """True if a number is, or was made of, what a tensor holds."""
    numbers = [
        given for given in node.all_input_nodes if isinstance(given.meta["example_value"], torch.SymInt)
    ]
    return node.target == "item" or any(map(_is_of_data, numbers))


def _is_known(item: Any) -> bool:
    """True for a position and what may stand beside it: slices, numbers, None and ``...``."""
    is_number = isinstance(item, ConstantVariable) and type(item.value) is int
    is_plain = is_number or _is(item, None, ...) or isinstance(item, SliceVariable | SymNodeVariable)
    return is_plain or _is_position(item)


def _is(item: Any, *values: Any) -> bool:
    return isinstance(item, ConstantVariable) and any(item.value is value for value in values)
