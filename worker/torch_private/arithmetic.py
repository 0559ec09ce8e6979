"""Arithmetic in a trace, as Python and NumPy do it.

Of two numbers ``min`` and ``max`` give one as it is. A bool beside a number is 0 or 1. Numbers that vary are
constants under ``is``, where they are rounded to digits, in texts, and where torch's algebra of symbols would
lose a rounding, or the sign of a zero.
Scalars of NumPy's are constants that compute as NumPy does, and its calls are checked. A member of an enum
that is a text or number has the methods of one.

Dynamo has torch compute what NumPy is asked for. Each call is made once more, by NumPy, on arrays of ones
with the same layouts, and refused where NumPy itself makes something else: torch computes some in another
dtype, and makes copies of what NumPy makes views of, or the other way round, which counts where somebody
writes to them.
"""

from __future__ import annotations

import enum
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import torch
from torch._dynamo.utils import (
    numpy_attr_wrapper,
    numpy_method_wrapper,
    numpy_operator_wrapper,
    numpy_to_tensor_wrapper,
)
from torch._dynamo.variables import TupleVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.misc import get_tnp_to_np_map
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx.node import Node, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from warmrank.worker.errors import NotPortable
from warmrank.worker.repeatable import get_extreme
from warmrank.worker.torch_private.patching import steps_in

if TYPE_CHECKING:
    from torch.fx import GraphModule

_BINARY: Final = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift",
)  # fmt: skip
OPERATORS: Final = frozenset(
    [getattr(operator, name) for name in (*_BINARY, "eq", "ne", "lt", "le", "gt", "ge")]
    + [getattr(operator, f"i{name.rstrip('_')}") for name in _BINARY]
    + [divmod, pow]
)
"""Python's own, of two operands."""
_OF_USERS: Final = "torch._dynamo.variables.user_defined:UserDefinedObjectVariable"
_MIXED_IN: Final[dict[Any, Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
"""Classes that enums take methods from, and what makes one of a member."""
_GIVING_BACK: Final = frozenset({"format", "format_map", "partition", "rpartition"})
"""Methods of texts that may give the very member."""
_ROUNDING: Final = frozenset({operator.floordiv, operator.mod, operator.ifloordiv, operator.imod})
_UNLIKE_OTHERS: Final[dict[Any, Callable[[Any], Any]]] = {
    **dict.fromkeys([*_ROUNDING, operator.truediv, operator.itruediv], lambda divisor: divisor == 0),
    **dict.fromkeys([operator.lshift, operator.rshift, operator.ilshift, operator.irshift], lambda n: n < 0),
    **dict.fromkeys([operator.pow, operator.ipow, pow], lambda exponent: exponent < 0),
}
"""The right operands for which operators raise an error, or give another type."""
_PLAIN: Final = frozenset({int, float, bool, str, bytes, type(None), tuple, list, torch.Tensor, np.ndarray})
"""Types of values with which numbers that vary are compared as they are."""
_OF_CONSTANTS: Final = frozenset({divmod, str, repr, ascii, bin, hex, oct, chr, hash, complex})
_DOMAINS: Final[dict[Any, Callable[[Any], Any]]] = {
    math.sqrt: lambda number: number < 0,
    math.log: lambda number: number <= 0,
    math.log2: lambda number: number <= 0,
    math.log10: lambda number: number <= 0,
}
"""For what the functions raise an error."""
_OF_ANY: Final = frozenset(
    {
        math.ceil, math.floor, math.trunc, math.fabs, math.isnan, math.isinf, math.isfinite, math.sin,
        math.cos, math.tan, math.atan, math.tanh, math.atan2, math.copysign, math.prod, math.fsum, math.hypot,
    }
)  # fmt: skip
_OF_DATA: Final = (torch.tensor, torch.as_tensor, torch.asarray)
_METHODS: Final = frozenset({"astype", "conjugate", "is_integer", "item", "round", "tolist"})
_WRITING: Final = frozenset(
    {
        "setitem", "__setitem__", "fill", "itemset", "partition", "put", "resize", "sort", "copyto", "place",
        "fill_diagonal", "putmask", "put_along_axis",
        "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub",
        "itruediv", "ixor",
    }
)  # fmt: skip
_MAX_BYTES: Final = 1 << 26
"""Larger arrays are not made, and so not compared."""


class NumpyScalar(ConstantVariable):
    """A scalar of NumPy's, which computes with it."""

    def __init__(self, value: Any, **kwargs: Any) -> None:
        super().__init__(value.item(), **kwargs)
        self.value = value

    def as_proxy(self) -> Any:
        """The number of Python's that torch takes it for."""
        if isinstance(self.value, np.bool_):
            msg = (
                "torch takes a bool of NumPy's for 1.0, and computes in floats, which is not followed; give "
                "the operator bool(value), or float(value)"
            )
            raise NotPortable(msg, what="numpy.bool_")
        return self.value.item()

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The answer of NumPy's own method, such as `item`."""
        given = [arg.realize() for arg in args]
        if name in _METHODS and not kwargs and all(arg.is_python_constant() for arg in given):
            made = getattr(self.value, name)(*[arg.as_python_constant() for arg in given])
            return VariableTracker.build(tx, made)
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, codegen: Any) -> None:
        """Load it."""
        codegen.append_output(codegen.create_load_const_unchecked(self.value))


def made_by_numpy(tx: Any, operate: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of an operator on constants of which one is a scalar of NumPy's; None for others.

    Sizes and numbers that vary become constants: there is no scalar of NumPy's of a symbolic value.
    """
    given = [arg.realize() for arg in args]
    if not any(isinstance(arg, NumpyScalar) for arg in given):
        return None
    if not all(isinstance(arg, ConstantVariable | SymNodeVariable) for arg in given):
        return None
    values = [arg.value if isinstance(arg, ConstantVariable) else arg.evaluate_expr() for arg in given]
    try:
        made = operate(*values)
    except (TypeError, ValueError, ArithmeticError):
        return None  # Dynamo raises it for the function
    if isinstance(made, tuple):  # of divmod
        return TupleVariable([VariableTracker.build(tx, item) for item in made])
    return VariableTracker.build(tx, made)


def _plain(variable: Any, name: str, kind: type) -> ConstantVariable | None:
    """The text or number that a member of an enum is, if a method is that of its class."""
    if not isinstance(variable.value, enum.Enum) or name in _GIVING_BACK:
        return None
    method = inspect.getattr_static(type(variable.value), name, None)
    if not isinstance(method, kind) or (owner := getattr(method, "__objclass__", None)) not in _MIXED_IN:
        return None
    plain: ConstantVariable = ConstantVariable.create(_MIXED_IN[owner](variable.as_python_constant()))
    return plain


class Numbers:
    """Steps in where Dynamo computes with numbers that vary, and with scalars of NumPy's."""

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function(tx, args, kwargs)")
    def _operate(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if variable.fn in OPERATORS:
            if (made := made_by_numpy(tx, variable.fn, args)) is not None:
                return made
            args = _allowed(variable.fn, _with_numbers(args))
        is_error = isinstance(variable.fn, type) and issubclass(variable.fn, BaseException)
        if variable.fn in _OF_CONSTANTS or is_error:  # whose text shows them
            args = [*map(decided, args)]
        elif variable.fn in (operator.is_, operator.is_not):
            args = _of_one_kind(args)
        elif variable.fn is round:
            held = _numbers(args)
            if not kwargs and len(held) == 1 and held[0].python_type() is int:
                return held[0]
            if len(args) > 1 or kwargs:
                args, kwargs = [*map(decided, args)], {name: decided(kwargs[name]) for name in kwargs}
        made = original(variable, tx, args, kwargs)
        is_refused = variable.fn in OPERATORS and made.is_constant_match(NotImplemented)
        if is_refused and all(arg.is_python_constant() for arg in args):  # as of a `StrEnum`, and a text
            made = VariableTracker.build(tx, variable.fn(*[arg.as_python_constant() for arg in args]))
        return made

    @steps_in(_OF_USERS, "call_method(tx, name, args, kwargs)")
    def _call_as_plain(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A method of C's of a member of an enum, called as one of the text or number that the member is."""
        if (plain := _plain(variable, name, MethodDescriptorType)) is not None:
            return plain.call_method(tx, name, args, kwargs)
        return original(variable, tx, name, args, kwargs)

    @steps_in(
        _OF_USERS,
        "mp_subscript_impl(tx, key)",
        "sq_contains(tx, item)",
        "sq_contains_impl(tx, item)",  # of torch 2.15
        is_optional=True,
    )
    def _look_into(self, original: Any, variable: Any, tx: Any, item: Any) -> Any:
        """A letter of such a text, or the answer to ``in``."""
        name = "__getitem__" if original.__name__ == "mp_subscript_impl" else "__contains__"
        if (plain := _plain(variable, name, WrapperDescriptorType)) is not None:
            return getattr(plain, original.__name__)(tx, item)
        return original(variable, tx, item)

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "_call_min_max_binary(tx, a, b)")
    def _choose(self, original: Any, variable: Any, tx: Any, *args: Any) -> Any:
        if any(arg is None for arg in args):
            return original(variable, tx, *args)
        if (made := made_by_numpy(tx, variable.fn, args)) is not None:
            return made
        numbers = [arg.realize() for arg in args]
        are_numbers = all(isinstance(number, ConstantVariable | SymNodeVariable) for number in numbers)
        vary = any(isinstance(number, SymNodeVariable) for number in numbers)
        if vary and not are_numbers:
            return original(variable, tx, *map(decided, args))
        if not (are_numbers and vary) or len({number.python_type() for number in numbers}) == 1:
            return original(variable, tx, *args)
        chosen: Any = VariableTracker.build(tx, get_extreme)
        return chosen.call_function(
            tx, [variable, *numbers], {"key": VariableTracker.build(tx, operator.pos)}
        )

    # What a comparison calls, which looks at numbers that vary before it asks for `call_function`.
    @steps_in("torch._dynamo.symbolic_convert:compare_op_handlers", "==", "!=", "<", "<=", ">", ">=")
    def _compare(self, original: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = made_by_numpy(tx, original.__self__.fn, args)
        return original(tx, _comparable(_with_numbers(args)), kwargs) if made is None else made

    @steps_in("torch._dynamo.symbolic_convert:compare_op_handlers", "is", "is not")
    def _compare_objects(self, original: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        return original(tx, _of_one_kind(args), kwargs)

    @steps_in("torch._dynamo.variables.torch:TorchInGraphFunctionVariable", "call_function(tx, args, kwargs)")
    def _call_torch(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Make a tensor of NumPy's scalars in their dtype; call `math` on numbers where it may raise."""
        if getattr(variable.value, "__module__", "") == "math" and variable.value not in _OF_ANY:
            is_outside = _DOMAINS.get(variable.value)
            held = _numbers(args)
            if is_outside is None or len(args) > 1 or any(bool(is_outside(each.sym_num)) for each in held):
                args = [*map(decided, args)]
        values = (
            _values_of(args[0]) if variable.value in _OF_DATA and args and "dtype" not in kwargs else None
        )
        if any(isinstance(value, np.generic) for value in tree_leaves(values)):
            kwargs = {**kwargs, "dtype": VariableTracker.build(tx, torch.tensor(values).dtype)}
            plain = tree_map(lambda value: value.item() if isinstance(value, np.generic) else value, values)
            args = [VariableTracker.build(tx, plain), *args[1:]]
        return original(variable, tx, args, kwargs)


class Rounding:
    """Steps in where sums and products of sizes and floats are made, in a trace and where it is lowered."""

    @steps_in("torch.fx.experimental.sym_node:SymNode", "_add")
    def _add(self, original: Any, node: Any, other: Any) -> Any:
        return _rounded(operator.add, original, node, other)

    @steps_in("torch.fx.experimental.sym_node:SymNode", "_sub")
    def _subtract(self, original: Any, node: Any, other: Any) -> Any:
        return _rounded(operator.sub, original, node, other)

    @steps_in("torch.fx.experimental.sym_node:SymNode", "_mul")
    def _multiply(self, original: Any, node: Any, other: Any) -> Any:
        return _rounded(operator.mul, original, node, other)


def decided(variable: Any) -> Any:
    """A number that varies as a constant, which is a condition of the trace then; all else as it is."""
    held = variable.realize()
    if not isinstance(held, SymNodeVariable):
        return variable
    return ConstantVariable.create(held.evaluate_expr(), source=held.source)


def _numbers(args: Any) -> list[Any]:
    """The operands, if all are constants or numbers that vary, and at least one varies; else none."""
    held = [arg.realize() for arg in args]
    are_known = all(isinstance(each, ConstantVariable | SymNodeVariable) for each in held)
    return held if are_known and any(isinstance(each, SymNodeVariable) for each in held) else []


def _allowed(operate: Any, args: Any) -> Any:
    """Operands: constants where floats are rounded, and where the right one is unlike others."""
    is_unlike = _UNLIKE_OTHERS.get(operate)
    if is_unlike is None or not (held := _numbers(args)):
        return args
    is_of_floats = operate in _ROUNDING and any(each.python_type() is float for each in held)
    varies = isinstance(held[1], SymNodeVariable)
    return [*map(decided, args)] if is_of_floats or (varies and bool(is_unlike(held[1].sym_num))) else args


def _of_one_kind(args: Any) -> Any:
    """Numbers as constants if they are of one type, so that they may be one object."""
    is_one = len({each.python_type() for each in _numbers(args)}) == 1
    return [*map(decided, args)] if is_one else args


def _comparable(args: Any) -> Any:
    """Operands of a comparison: constants beside an object of another type, which may equal a number."""
    held = [arg.realize() for arg in args]
    is_number = any(isinstance(each, SymNodeVariable) for each in held)
    kinds = {each.python_type() for each in held} - _PLAIN if is_number else set()
    return [*map(decided, args)] if kinds else args


def _with_numbers(args: Any) -> Any:
    """Operands with 0 or 1 for a bool beside a number that varies, or that varies beside another number."""
    held = _numbers(args)
    kinds = [each.python_type() for each in held]
    if not {int, float} & {*kinds}:
        return args
    return [
        ConstantVariable.create(int(decided(each).value)) if kind is bool else arg
        for each, kind, arg in zip(held, kinds, args, strict=True)
    ]


def _values_of(variable: Any) -> Any:
    """A constant, or lists of constants; None where something else is held."""
    held = variable.realize()
    if not isinstance(held, BaseListVariable):
        return held.value if isinstance(held, ConstantVariable) else None
    values = [_values_of(item) for item in held.items]
    return None if None in values else values


def _rounded(operate: Callable[..., Any], original: Any, node: Any, other: Any) -> Any:
    """A sum or product of floats; of constants where the algebra of symbols would not round as floats do."""
    made = original(node, other)
    if made.pytype is not float or not (node.expr.free_symbols or other.expr.free_symbols):
        return made
    if operate is operator.mul:
        scales = [number.expr.as_coeff_Mul()[0] for number in (node, other)]
        is_exact = bool(made.expr.free_symbols) and any(scale == 1 for scale in scales)
    else:
        sums = [number.expr.as_coeff_Add() for number in (node, other)]
        terms = [len(each.expr.args) if each.expr.is_Add else 1 for each in (made, node, other)]
        is_cancelled = not made.expr.free_symbols or terms[0] < max(terms[1:])
        is_exact = not (is_cancelled or all(constant for constant, _ in sums))
    if is_exact:
        return made
    for each in (node, other):
        (each.guard_int if each.pytype is int else each.guard_float)("", 0)
    return made.wrap_float(operate(node.hint, other.hint))  # which have the sign of zeros


class _NotMade(Exception):
    """There is no such array."""


def refuse_other_results(graph_module: GraphModule) -> None:
    """Raise `NotPortable` where NumPy's own result has another dtype, or shares memory otherwise."""
    nodes, arrays = graph_module.graph.nodes, _Arrays()
    calls = [(node, *call) for node in nodes if (call := _called(node)) is not None]
    if not calls:
        return
    writes = any(map(_writes, nodes))
    returned = tree_leaves([node.args for node in nodes if node.op == "output"])
    kept = {_storage(node.meta.get("example_value")) for node in returned if isinstance(node, Node)}
    for node, name, function in calls:
        try:
            args, kwargs = tree_map(_of_numpy, map_arg((node.args, node.kwargs), arrays.of_node))
            with np.errstate(all="ignore"):
                made = function(*args, **kwargs)
        except TypeError as error:
            _refuse(name, f"raises TypeError: {error}")
        except (ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError, _NotMade):  # of these values
            continue
        given = [array for array in tree_leaves([args, kwargs]) if isinstance(array, np.ndarray)]
        results = [value for value in tree_leaves(made) if isinstance(value, np.ndarray | np.generic)]
        traced = [it for it in tree_leaves(node.meta.get("example_value")) if isinstance(it, torch.Tensor)]
        for value, result in zip(traced, results, strict=False):
            if result.dtype.name != _name_of(value.dtype):
                _refuse(name, f"gives {result.dtype.name}, where torch gives {_name_of(value.dtype)}")
            shares = any(np.may_share_memory(result, array) for array in given)
            if (writes or _storage(value) in kept) and shares != arrays.lies_in(value, given):
                _refuse(name, f"makes a {'view' if shares else 'copy'}, where torch does not")


def _refuse(name: str, what: str) -> NoReturn:
    msg = f"NumPy's {name} {what}; compute that with torch, or outside of the cached function"
    raise NotPortable(msg, what=f"numpy.{name}")


def _called(node: Node) -> tuple[str, Callable[..., Any]] | None:
    """Name and function of a call of NumPy; None for all else."""
    target: Any = node.target
    if isinstance(target, numpy_to_tensor_wrapper):
        known: dict[Any, Any] = get_tnp_to_np_map()
        function = known.get(target.f)
        return None if function is None else (function.__name__, function)
    if isinstance(target, numpy_method_wrapper):
        return target.method, lambda array, *args, **kwargs: getattr(array, target.method)(*args, **kwargs)
    if isinstance(target, numpy_operator_wrapper):
        return target.op.__name__, target.op
    return ("attribute", getattr) if target is numpy_attr_wrapper else None


def _writes(node: Node) -> bool:
    """True if a node writes to an array or a tensor."""
    call = _called(node)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if call is not None:
        name = call[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return node.op.startswith("call") and (name in _WRITING or is_in_place or "out" in node.kwargs)


def _storage(value: Any) -> int:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Arrays:
    """Arrays of ones in place of fake tensors; those of one storage share their memory."""

    def __init__(self) -> None:
        self._buffers: dict[int, np.ndarray[Any, Any]] = {}

    def of_node(self, node: Node) -> Any:
        """The array for a node's tensor; of a symbolic number the one of the traced call."""
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            return _hint(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value
        try:
            dtype = np.dtype(_name_of(value.dtype))
        except TypeError:
            raise _NotMade from None
        size_bytes = _hint(value.untyped_storage().nbytes())
        if size_bytes > _MAX_BYTES:
            raise _NotMade
        buffer = self._buffers.get(_storage(value))
        if buffer is None:
            buffer = self._buffers[_storage(value)] = np.ones(-(-size_bytes // dtype.itemsize), dtype)
        strides = [_hint(stride) * dtype.itemsize for stride in value.stride()]
        offset = _hint(value.storage_offset()) * dtype.itemsize
        return np.ndarray([*map(_hint, value.shape)], dtype, buffer.view(np.uint8).data, offset, strides)

    def lies_in(self, value: torch.Tensor, arrays: list[np.ndarray[Any, Any]]) -> bool:
        """True if a tensor's storage is that of one of the arrays."""
        buffer = self._buffers.get(_storage(value))
        return buffer is not None and any(np.may_share_memory(buffer, array) for array in arrays)


def _hint(size: Any) -> Any:
    """A size or number, without a guard: of a symbolic one that of the traced call."""
    hint = size if isinstance(size, int) else size.node.hint
    if hint is None:
        raise _NotMade
    return hint


def _of_numpy(value: Any) -> Any:
    """NumPy's own for a dtype of torch's, any other value as it is."""
    return getattr(np, _name_of(value)) if isinstance(value, torch.dtype) else value
