"""Indexing by numbers that vary (``cache[:, self.position]``), and by a tensor without dimensions.

Torch takes a number beside other indexes for a constant. Here it selects first, as it does in eager.

Torch does not trace such a tensor there, because eager asks for its value. A read stays the view that it is
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

from warmrank.worker.torch_private.operators import memory_of
from warmrank.worker.torch_private.patching import steps_in

_DTYPES: Final = (torch.int64, torch.int32)


class Positions:
    """Steps in where Dynamo traces an index."""

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function(tx, args, kwargs)")
    def _get(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if variable.fn is not operator.getitem or len(args) != 2:
            return original(variable, tx, args, kwargs)
        if (selected := _selected(tx, *args)) is not None:
            view, rest = selected
            return variable.call_function(tx, [view, rest], kwargs) if rest.items else view
        found = _Index.of(tx, *args)
        return original(variable, tx, args, kwargs) if found is None else found.read()

    @steps_in("torch._dynamo.variables:TensorVariable", "method___setitem__")
    def _set(self, original: Any, variable: Any, *call: Any) -> Any:
        tx, (index, value) = InstructionTranslator.current_tx(), call[-2:]
        if (selected := _selected(tx, variable, index)) is not None:
            view, rest = selected
            return view.call_method(tx, "__setitem__", [rest, value], {})
        found = _Index.of(tx, variable, index)
        return original(variable, *call) if found is None else found.write(value.realize())


def _selected(tx: Any, base: Any, index: Any) -> tuple[Any, TupleVariable] | None:
    """A view of the elements at numbers that vary, and the indexes beside these; None for others."""
    base, index = base.realize(), index.realize()
    if type(base) is not TensorVariable or not isinstance(index, TupleVariable):
        return None
    items = [item.realize() for item in index.items]
    taken = [_num_taken(item) for item in items]
    if None in taken or not any(map(_is_number, items)):
        return None
    # New dimensions first, for their strides are made of those behind them.
    left = _example(base).dim() - sum(taken)  # for ``...``, or at the end
    whole: list[Any] = []
    rest: list[Any] = []
    numbers: list[tuple[int, Any]] = []
    for item, num_taken in zip(items, taken, strict=True):
        is_new = _is(item, None)
        if _is_number(item):
            numbers.append((len(whole), item))
        else:
            rest.append(_everything() if is_new else item)
        whole += [item] if is_new else [_everything()] * (left if _is(item, ...) else num_taken)
    view = VariableTracker.build(tx, operator.getitem).call_function(tx, [base, TupleVariable(whole)], {})
    select = VariableTracker.build(tx, torch.select)
    for dim, number in reversed(numbers):
        view = select.call_function(tx, [view, ConstantVariable.create(dim), number], {})
    return view, TupleVariable(rest)


def _num_taken(item: Any) -> Any:
    """Dimensions that an index takes; None where that is not known."""
    if isinstance(item, TensorVariable):
        value = _example(item)
        return (value.dim() or None) if value.dtype in (torch.bool, torch.uint8) else 1
    is_list = isinstance(item, ListVariable) and all(_is_constant_number(one.realize()) for one in item.items)
    is_one = is_list or _is_number(item) or isinstance(item, SliceVariable) or _is_constant_number(item)
    return 1 if is_one else 0 if _is(item, None, ...) else None


def _is_number(item: Any) -> bool:
    return isinstance(item, SymNodeVariable) and item.python_type() is int


class _Index:
    """An index of a tensor with positions in it, each by its dimension of ``view``, which takes all there."""

    def __init__(self, tx: Any, view: TensorVariable, positions: list[TensorVariable | None]) -> None:
        self.tx, self.view, self.positions = tx, view, positions

    @classmethod
    def of(cls, tx: Any, base: VariableTracker, index: VariableTracker) -> _Index | None:
        """None for any other index, also for one beside other tensors."""
        base = base.realize()
        if type(base) is not TensorVariable:  # not an array of NumPy's, either
            return None
        index = index.realize()
        items = [item.realize() for item in index.items] if isinstance(index, TupleVariable) else [index]
        if not any(map(_is_position, items)) or not all(map(_is_known, items)):
            return None
        whole = [_everything() if _is_position(item) else item for item in items]
        taken = sum(map(_num_taken, items))
        positions: list[Any] = []
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
                value = position.call_method(self.tx, "item", [], {})
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
        if is_own:
            self.read().call_method(tx, "__setitem__", [ConstantVariable.create(...), value], {})
        else:
            nothing = ConstantVariable.create(None)
            indices: list[VariableTracker] = [position or nothing for position in self.positions]
            num_filled = like.dim() - sum(position is not None for position in self.positions)
            for size in _example(value).shape[: max(0, _example(value).dim() - num_filled)]:
                if size == 1:  # which an assignment passes over
                    value = value.call_method(tx, "squeeze", [ConstantVariable.create(0)], {})
            value = value.call_method(tx, "to", [], as_like)
            put = VariableTracker.build(tx, torch.ops.aten.index_put_.default)
            put.call_function(tx, [self.view, ListVariable(indices), value], {})
        return ConstantVariable.create(None)


def _everything() -> SliceVariable:
    return SliceVariable([ConstantVariable.create(None)] * 3)


def _example(variable: Any) -> Any:
    return variable.as_proxy().node.meta["example_value"]


def _is_position(item: Any) -> bool:
    value = _example(item) if type(item) is TensorVariable else None
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _DTYPES


def _is_known(item: Any) -> bool:
    """True for a position and what may stand beside it: slices, numbers, None and ``...``."""
    is_plain = _is_constant_number(item) or _is(item, None, ...) or isinstance(item, SliceVariable)
    return is_plain or _is_position(item)


def _is_constant_number(item: Any) -> bool:
    return isinstance(item, ConstantVariable) and type(item.value) is int


def _is(item: Any, *values: Any) -> bool:
    return isinstance(item, ConstantVariable) and any(item.value is value for value in values)
