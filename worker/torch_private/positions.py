"""Indexing by numbers that vary (``cache[:, self.position]``), and by a tensor without dimensions.

Torch takes a number beside other indexes for a constant. Here it selects first, as it does in eager.

Torch does not trace such a tensor there, because eager asks for its value. A read stays the view that it is
in eager, so its graph asks for the value, too, and is not captured. A write of other data, and a read beside
other tensors, becomes an operator that takes the position where it runs: one captured graph serves all.
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

from warmrank.worker.torch_private.operators import storage_ids
from warmrank.worker.torch_private.patching import steps_in

_DTYPES: Final = (torch.int64, torch.int32)


class Positions:
    """Steps in where Dynamo traces an index."""

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function(tx, args, kwargs)")
    def _get(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if variable.fn is not operator.getitem or len(args) != 2:
            return original(variable, tx, args, kwargs)
        index = _Index.of(tx, *args)
        if index is None:
            return original(variable, tx, args, kwargs)
        if index.is_selecting is _is_position and any(map(_is_gathered, index.items)):
            return index.gathered()
        view, rest = index.selected()
        return variable.call_function(tx, [view, rest], kwargs) if rest.items else view

    @steps_in("torch._dynamo.variables:TensorVariable", "method___setitem__")
    def _set(self, original: Any, variable: Any, *call: Any) -> Any:
        tx, (items, value) = InstructionTranslator.current_tx(), call[-2:]
        index = _Index.of(tx, variable, items)
        if index is None:
            return original(variable, *call)
        if index.is_selecting is _is_position:
            return index.write(value.realize())
        view, rest = index.selected()
        return view.call_method(tx, "__setitem__", [rest, value], {})


class _Index:
    """The indexes of a tensor, each with the number of dimensions that it takes.

    ``is_selecting`` tells those that select first: numbers that vary, or positions where there are none.
    """

    def __init__(
        self, tx: Any, base: TensorVariable, items: list[Any], taken: list[int], is_selecting: Any
    ) -> None:
        self.tx, self.base, self.items, self.taken, self.is_selecting = tx, base, items, taken, is_selecting
        self.left = _example(base).dim() - sum(taken)  # for ``...``, or at the end

    @classmethod
    def of(cls, tx: Any, base: VariableTracker, index: VariableTracker) -> _Index | None:
        """None where nothing selects, or it is not known what is taken, and for no tensor of torch's."""
        base, index = base.realize(), index.realize()
        if type(base) is not TensorVariable:  # not an array of NumPy's, either
            return None
        items = [item.realize() for item in index.items] if isinstance(index, TupleVariable) else [index]
        kinds = (kind for kind in (_is_number, _is_position) if any(map(kind, items)))
        if (is_selecting := next(kinds, None)) is None:
            return None
        taken = [_num_taken(item) for item in items]
        return None if None in taken else cls(tx, base, items, taken, is_selecting)

    def selected(self) -> tuple[Any, TupleVariable]:
        """A view of the elements at what selects, and the indexes beside that."""
        # New dimensions first, for their strides are made of those behind them.
        whole: list[Any] = []
        rest: list[Any] = []
        numbers: list[tuple[int, Any]] = []
        for item, num_taken in zip(self.items, self.taken, strict=True):
            is_new = _is(item, None)
            if self.is_selecting(item):
                numbers.append((len(whole), item))
            else:
                rest.append(_everything() if is_new else item)
            whole += [item] if is_new else [_everything()] * (self.left if _is(item, ...) else num_taken)
        view = self._viewed(whole)
        for dim, item in reversed(numbers):
            number = item.call_method(self.tx, "item", [], {}) if _is_position(item) else item
            view = self._call(torch.select, view, ConstantVariable.create(dim), number)
        return view, TupleVariable(rest)

    def gathered(self) -> Any:
        """A copy of the elements there."""
        view, indices = self._put()
        return self._call(torch.ops.aten.index.Tensor, view, ListVariable(indices))

    def write(self, value: VariableTracker) -> Any:
        """Assign a tensor or a number where some indexes are positions."""
        like = _example(self.base)
        as_like = {name: VariableTracker.build(self.tx, getattr(like, name)) for name in ("dtype", "device")}
        if not isinstance(value, TensorVariable):
            value = self._call(torch.full, TupleVariable([]), value, **as_like)
        if storage_ids(like) & storage_ids(_example(value)):
            view, beside = self.selected()
            rest = beside if beside.items else ConstantVariable.create(...)
            return view.call_method(self.tx, "__setitem__", [rest, value], {})
        view, indices = self._put()
        tensors = [index for index in indices if not _is(index, None)]
        num_filled = len(indices) - len(tensors)
        num_filled += max(_example(index).dim() if _num_taken(index) == 1 else 1 for index in tensors)
        for size in _example(value).shape[: max(0, _example(value).dim() - num_filled)]:
            if size == 1:  # which an assignment passes over
                value = value.call_method(self.tx, "squeeze", [ConstantVariable.create(0)], {})
        value = value.call_method(self.tx, "to", [], as_like)
        self._call(torch.ops.aten.index_put_.default, view, ListVariable(indices), value)
        return ConstantVariable.create(None)

    def _put(self) -> tuple[Any, list[Any]]:
        """A view and its indexes: tensors, or None for all of a dimension.

        A position stands beside another tensor: eager selects first, so it does not part two of them.
        """
        whole: list[Any] = []
        indices: list[tuple[Any, list[int]]] = []  # each with its dimensions of the view
        num_dims = 0
        for item, num_taken in zip(self.items, self.taken, strict=True):
            is_kept = isinstance(item, SliceVariable) or _is(item, None)
            num_left = self.left if _is(item, ...) else 0 if _is_constant_number(item) else num_taken
            dims = list(range(num_dims, num_dims := num_dims + (1 if is_kept else num_left)))
            whole += [item] if is_kept or not dims else [_everything()] * len(dims)
            if isinstance(item, TensorVariable):
                indices.append((item, dims))
            elif isinstance(item, ListVariable):
                indices.append((self._call(torch.tensor, item), dims))
            else:
                indices += [(ConstantVariable.create(None), [dim]) for dim in dims]
        view = self._viewed(whole)
        others = [one for one in indices if not _is_position(one[0])]
        first = next((at for at, (index, _) in enumerate(others) if not _is(index, None)), None)
        if first is not None:
            indices = [*others[:first], *(one for one in indices if _is_position(one[0])), *others[first:]]
            order = [dim for _, dims in indices for dim in dims]
            order += range(num_dims, _example(view).dim())
            view = view.call_method(self.tx, "permute", [ConstantVariable.create(dim) for dim in order], {})
        return view, [index for index, _ in indices]

    def _viewed(self, items: list[Any]) -> Any:
        return self._call(operator.getitem, self.base, TupleVariable(items))

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return VariableTracker.build(self.tx, function).call_function(self.tx, list(args), kwargs)


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


def _everything() -> SliceVariable:
    return SliceVariable([ConstantVariable.create(None)] * 3)


def _example(variable: Any) -> Any:
    return variable.as_proxy().node.meta["example_value"]


def _is_position(item: Any) -> bool:
    value = _example(item) if type(item) is TensorVariable else None
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _DTYPES


def _is_gathered(item: Any) -> bool:
    return isinstance(item, TensorVariable | ListVariable) and not _is_position(item)


def _is_constant_number(item: Any) -> bool:
    return isinstance(item, ConstantVariable) and type(item.value) is int


def _is(item: Any, *values: Any) -> bool:
    return isinstance(item, ConstantVariable) and any(item.value is value for value in values)
