"""Values that Dynamo hashes, compares and orders while it traces, without a guard.

* Keys and compared values: ``realize_all`` makes variables, and with them guards, of all that they hold.
* Constants (a member of an enum, a class, a tuple): their methods of the user's that run untraced, in files
  of ``_EVALUATING``, are refused; so is ``is`` between equal ones, an accident of the process.
* Orders of sets and hashes of strings, which differ by process. A set that the caller brings must have its
  members in the traced order; so must one that the function makes of constants (`evaluated_sets`), which is
  traced in the order that Python gives it. Else the outcome follows from how strings are hashed, which
  `HASHED` stands for, or from addresses, which is refused. What a function that keeps its results
  (``functools.lru_cache``) makes of constants counts as a whole, if it changes nothing.

Relied on: a set's variable has ``items``, a dict of its members in the order of the trace; ``mutation_type``
says if a variable is new; a function that keeps its results is the ``wrapper_obj`` of its variable.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._dynamo.variables import NumpyNdarrayVariable, TensorVariable, UnspecializedPythonVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker

from warmrank.worker.keys.code import is_pinned_module, is_users_function, package_of
from warmrank.worker.repeatable import PLAIN, RECIPES, get_counted, kept_result
from warmrank.worker.torch_private.evaluated_calls import EVALUATING, PRINTING, callers
from warmrank.worker.torch_private.evaluated_sets import (
    EMPTY,
    FILLING,
    MAKING,
    NewSets,
    has_hash_of_address,
    held_in,
    is_number,
    kind_of,
    values,
)
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import steps_in, steps_in_variables, targets_of, with_subclasses

if TYPE_CHECKING:
    from warmrank.worker.torch_private.evaluated import Evaluations

_BUILTIN: Final = "torch._dynamo.variables.builtin:BuiltinVariable"
_KEY: Final = "torch._dynamo.variables.hashable:HashableTracker"
_KEY_OF_OLD: Final = "torch._dynamo.variables.dicts:ConstDictVariable._HashableTracker"  # in 2.11
_EFFECTS: Final = "torch._dynamo.side_effects:SideEffects"
_TELLS_METHODS_APART: Final = torch.__version__ >= "2.12"
HASHED: Final = "PYTHONHASHSEED"
"""A string by whose hash processes are told apart; named for what decides on it."""

_TORCH: Final = str(Path(torch.__file__).parent)
_EVALUATING: Final = (*EVALUATING, str(Path(_TORCH) / "_dynamo" / "utils.py"))
_BUILDING: Final = str(Path(_TORCH) / "_dynamo" / "variables" / "builder.py")
_ATOMS: Final = (int, float, complex, str, bytes)
_PLAIN: Final = (*_ATOMS, tuple, frozenset)
_MANY: Final = (*_PLAIN, range, slice, torch.Size)  # constants of which Python may hold several equal ones
_MADE_ONCE: Final = range(-5, 257)
_NOT_ASKED: Final = frozenset(
    {
        "__init__", "__new__", "__init_subclass__", "__set_name__", "__post_init__", "__class_getitem__",
        "__getattr__", "__getattribute__", "__setattr__", "__prepare__", "__call__", "__instancecheck__",
        "__subclasscheck__",
    }
)  # fmt: skip
_NO_ORDER: Final = (
    "the order of a set that was made of sets from before the call, of what is no constant, or of a literal "
    "that Python may fill in several orders, hangs on how Python made it, which is not followed; go over "
    "sorted(...) of it, or over a list"
)
_UNORDERED: Final = (set, frozenset, len, any, all, min, max)
_POLYFILLS: Final = "torch._dynamo.polyfills"
_ALGEBRA: Final = "set_"
"""Start of names of functions by which Dynamo makes sets of sets."""
_TAKING: Final = ("extend", "extendleft", "__iadd__", "__init__")
_TELLING: Final = ("__repr__", "__str__", "__format__", "format", "format_map", "__mod__")


class ValueHooks:
    """Steps in where values are hashed, compared and ordered."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations, self._refuse = evaluations, evaluations.refuse
        self._seen: set[type] = set()
        self._methods: set[CodeType] = set()  # of constants that the trace came upon
        self._new = NewSets()
        self._of_torch: dict[int, Any] = {}  # sets that code of torch made, and may go over in any order
        self._partials: dict[int, tuple[Any, Any]] = {}  # likewise
        self._held: list[tuple[Any, ...]] | None = None  # calls that a kept result may stand for
        self._keeping = ""  # name of the user's function that keeps its results, while it is traced
        self._remembered: dict[int, tuple[Any, str]] = {}  # containers that one keeps, and its name
        self._sorting = 0
        self._sets = _set_classes()

    # Keys and compared values.

    @steps_in(_KEY, "__init__", is_optional=True)
    @steps_in(_KEY_OF_OLD, "__init__", is_optional=True)
    def _realize_key(self, original: Any, key: Any, variable: Any) -> None:
        LazyVariableTracker.realize_all(variable)
        if not _TELLS_METHODS_APART and kind_of(variable) is MethodType:
            self._refuse(
                "before torch 2.12, a method as a key of a dict or set is found by its function alone, so "
                "methods of two objects are taken for one; keep a dict by a name"
            )
        original(key, variable)

    @steps_in_variables("is_python_equal", is_optional=True)
    def _realize_both(self, original: Any, variable: Any, other: Any) -> Any:
        LazyVariableTracker.realize_all((variable, other))
        return original(variable, other)

    # Methods and identities of constants.

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "__call__(value)")
    @steps_in("torch._dynamo.variables.builder:SourcelessBuilder", "create(tx, value)")
    def _build(self, original: Any, builder_or_tx: Any, value: Any) -> Any:
        """Look at each call that Python makes, from the first constant with own methods on."""
        kind = type(value)
        for member in {type(one) for one in value} if issubclass(kind, set | frozenset) else ():
            for method in _methods_of(member):
                if method.co_name in ("__eq__", "__hash__"):  # Dynamo looks for the same objects
                    self._refuse(
                        f"{method.co_qualname} decides what is in a set, and is not asked while the function "
                        "is traced; keep a dict by a name, or a list"
                    )
        if issubclass(kind, functools.partial) and kind is not functools.partial:
            self._refuse(
                f"{kind.__qualname__} is a subclass of functools.partial, and traced as a plain one; use "
                "a class of its own with __call__"
            )
        if kind not in self._seen:
            self._seen.add(kind)
            params = getattr(kind, "__dataclass_params__", None)
            if issubclass(kind, (type, enum.Enum, *_PLAIN)) or (params is not None and params.frozen):
                before = len(self._methods)
                self._methods.update(_methods_of(kind))
                if len(self._methods) > before:
                    sys.setprofile(self._called)
        made = original(builder_or_tx, value)
        if kind is functools.partial:
            self._partials[id(made)] = value, made
        return made

    @steps_in("torch._dynamo.variables.functions:FunctoolsPartialVariable", "as_python_constant")
    def _partial(self, original: Any, variable: Any) -> Any:
        """The partial itself where it was there before the call, for a new one equals none."""
        value, _ = self._partials.get(id(variable), (None, None))
        return original(variable) if value is None else value

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or frame.f_code not in self._methods:
            return
        # A method of Python's, or of the user's, may call this one.
        files = (one.f_code.co_filename for one in callers(frame.f_back))
        file = next((file for file in files if file.startswith(_TORCH)), "")
        if file.startswith(_EVALUATING) and file != _BUILDING:
            self._refuse(
                f"{frame.f_code.co_qualname} is called while the function is traced, and is not traced "
                "itself, so what it depends on could not be noticed; call it by its name, or ask before the "
                "call and keep the answer as an attribute"
            )

    @steps_in("torch._dynamo.symbolic_convert:compare_op_handlers", "is", "is not")
    def _compare(self, original: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
        answer = original(tx, args, kwargs)
        asking = tx.f_globals.get("__name__")
        if asking == get_counted.__module__ or is_pinned_module(asking):
            return answer
        if all(kind_of(arg) is MethodType for arg in args):
            self._refuse(
                "`is` between methods says whether one look made both, for each look makes another; compare "
                "them with =="
            )
        elif any(arg.source for arg in args):
            one, other = map(_one_of_many, args)
            sources = [source_name(arg.source) for arg in args if arg.source]
            if not (one and other and one == other):
                return answer
            if len(sources) == 2 and type(one[0]) in _ATOMS:
                self._evaluations.note("is", sources[0], (sources[1], one[0] is other[0]))
            else:
                self._refuse(
                    f"`is` between values of type {type(one[0]).__name__} says whether equal ones are "
                    "one object, which differs from process to process; compare them with =="
                )
        return answer

    # Orders of sets, and hashes.

    @steps_in_variables("unpack_var_sequence", "tp_iter_impl", is_optional=True)
    def _unpack(self, original: Any, variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._sorting:
            self._note_sets([variable], tx)
        return original(variable, tx, *args, **kwargs)

    @steps_in("torch._dynamo.variables.sets:BaseSetVariable", "__init__", is_optional=True)
    @steps_in("torch._dynamo.variables.sets:SetVariable", "__init__", is_optional=True)
    @steps_in("torch._dynamo.variables.dicts:SetVariable", "__init__", is_optional=True)  # in 2.11
    def _init_set(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
        original(variable, *args, **kwargs)
        caller = sys._getframe(2)
        if caller.f_code.co_name == "BUILD_SET":  # the instruction
            self._new.fill(variable, EMPTY, ())
            self._note_maker(variable, caller.f_locals["self"])

    @steps_in_variables("repr_impl", "tp_repr_impl", is_optional=True)
    def _tell(self, original: Any, variable: Any, tx: Any) -> Any:
        self._note_sets(held_in((variable,)), tx)
        return original(variable, tx)

    @steps_in_variables("call_method(tx, name, args, kwargs)")
    def _method(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in ("pop", "__iter__"):
            self._note_sets([variable], tx)
        elif name in _TAKING:
            self._note_sets(args, tx)
        elif name in _TELLING:
            self._note_sets(held_in((variable, *args, *kwargs.values())), tx)
        elif name == "__hash__":
            self._note_hashes([variable])
        if kind_of(variable) not in (set, frozenset):
            return original(variable, tx, name, args, kwargs)
        if name == "pop" and not args and variable in self._new and variable.items:
            first = next(values(variable.items))
            original(variable, tx, "remove", [first], kwargs)
            self._new.keep(variable, None)  # the next one is not the first
            return first
        step = self._new.step_of(name, args)
        if name not in FILLING and step is None:  # other changes end it, see `_mutation`
            return original(variable, tx, name, args, kwargs)
        before, known = self._new.operand(variable), [*variable.items]
        made = original(variable, tx, name, args, kwargs)
        if step is None:
            self._new.fill(variable, before, known, *(args if name == "update" else ()))
        elif made is not variable or name != "copy":  # that of a frozenset
            self._new.note(made if isinstance(made, self._sets) else variable, before, *step)
        return made

    @steps_in("torch._dynamo.variables.lists:BaseListVariable", "list_extend", is_optional=True)  # from 2.15
    def _extend(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Look at a set that is put into a list or deque as a whole, without an iterator."""
        self._note_sets(args, tx)
        return original(variable, tx, args, kwargs)

    @steps_in(
        "torch._dynamo.variables.builtin:DictBuiltinVariable", "call_custom_dict_fromkeys", is_optional=True
    )
    def _keys_of(self, original: Any, tx: Any, kind: type, *args: Any, **kwargs: Any) -> Any:
        self._note_sets(args[:1], tx)
        return original(tx, kind, *args, **kwargs)

    @steps_in(_BUILTIN, "call_sorted", "_call_min_max")
    def _sort(self, original: Any, builtin: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        is_sorting = "key" not in kwargs  # equal keys keep the order that they had
        self._sorting += is_sorting
        try:
            return original(builtin, tx, *args, **kwargs)
        finally:
            self._sorting -= is_sorting

    @steps_in(_BUILTIN, "_call_min_max_binary(tx, a, b)")
    def _choose(self, original: Any, builtin: Any, tx: Any, *chosen_of: Any) -> Any:
        """Refuse what Python chooses by a tensor's truth, and Dynamo computes (``torch.maximum``)."""
        found = [each.realize() for each in filter(None, chosen_of)]
        numbers = UnspecializedPythonVariable
        if any(isinstance(each, TensorVariable) and not isinstance(each, numbers) for each in found):
            name = builtin.fn.__name__
            self._refuse(
                f"Python's {name} returns one of the tensors that it compares, and is followed as "
                f"torch.{name}imum, which makes a new one and passes NaN on; call torch.{name}imum, "
                "torch.clamp or torch.where"
            )
        return original(builtin, tx, *chosen_of)

    @steps_in("torch._dynamo.codegen:PyCodegen", "add_graph_output(value)")
    def _return(self, original: Any, codegen: Any, variable: Any) -> Any:
        is_array = isinstance(variable, NumpyNdarrayVariable)
        if is_array and not variable.as_proxy().node.meta["example_value"].ndim:
            self._refuse(
                "a NumPy result without dimensions would be an array here, and may be a scalar in eager; "
                "return its item(), or an array with a dimension"
            )
        return original(codegen, variable)

    @steps_in(_BUILTIN, "call_function")
    def _builtin(self, original: Any, builtin: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if builtin.fn is hash and not _is_look_up(tx):
            self._note_hashes(args)
        elif builtin.fn in (*PRINTING, str.format, operator.mod):
            self._note_sets(held_in((*args, *kwargs.values())), tx)
        is_unordered = builtin.fn in _UNORDERED and not kwargs
        self._sorting += is_unordered
        of = [self._new.operand(each) for each in args] if builtin.fn in (*MAKING, frozenset) else []
        try:
            made = original(builtin, tx, args, kwargs)
        finally:
            self._sorting -= is_unordered
        if isinstance(made, self._sets):
            self._note_made(tx, builtin.fn, made, args, of)
        if builtin.fn in (set, frozenset):
            self._note_maker(made, tx)
        return made

    def _note_made(self, tx: Any, function: Any, made: Any, args: Any, of: list[Any]) -> None:
        """Note how a set was made by a class, or an operator, of what was noted of its operands before."""
        if function in MAKING:
            self._new.note(made, of[0], MAKING[function], *of[1:])
        elif function not in (set, frozenset):
            return
        elif _is_algebra(tx):
            self._new.keep(made, None)
        elif function is frozenset and args and kind_of(args[0]) is frozenset:
            self._new.keep(made, of[0])
        else:
            self._new.fill(made, EMPTY, (), *args)

    def _note_maker(self, variable: Any, tx: Any) -> None:
        if not _is_for_users(tx):
            self._of_torch[id(variable)] = variable

    @steps_in(_EFFECTS, "mutation(var)")
    def _mutation(self, original: Any, effects: Any, variable: Any) -> Any:
        self._new.forget(variable)
        if id(variable) in self._remembered:
            self._refuse_kept(f"changes what {self._remembered[id(variable)][1]} returns, which")
        return original(effects, variable)

    @steps_in(_EFFECTS, "check_allowed_side_effect(item)")
    def _effect(self, original: Any, effects: Any, item: Any) -> Any:
        if self._keeping and not type(item.mutation_type).__name__.endswith("New"):
            self._refuse_kept(f"calls {self._keeping}, which changes what was there before the call and")
        return original(effects, item)

    def _refuse_kept(self, does: str) -> None:
        self._refuse(
            f"the function {does} keeps its results (functools.lru_cache); call it before, and pass "
            "what it returns"
        )

    @steps_in(
        "torch._dynamo.variables.functions:WrapperUserFunctionVariable", "call_function(tx, args, kwargs)"
    )
    def _kept(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        function = variable.wrapper_obj
        if not hasattr(function, "cache_info"):
            return original(variable, tx, args, kwargs)
        is_users = is_users_function(function.__wrapped__)
        outer, self._held = (self._held, self._keeping), []
        self._keeping = function.__qualname__ if is_users else self._keeping
        refused, num_refused = self._evaluations.refused, len(self._evaluations.refused)
        try:
            made = original(variable, tx, args, kwargs)
        finally:
            held, (self._held, self._keeping) = self._held, outer
        # What assume_constant_result marks is not traced, and refused for those that call it each time.
        is_marked = getattr(function.__wrapped__, "_dynamo_marked_constant", False)
        is_plain = made.is_python_constant() and type(made.as_python_constant()) in (*PLAIN, tuple)
        asked = held or is_marked or (is_users and is_plain)
        whole = _kept_call(function, args, kwargs) if asked else None
        if whole is not None and (is_marked or whole[1][0] == RECIPES):
            del refused[num_refused:]
        for call in held if whole is None else [whole]:
            self._note_call(*call)
        if whole is not None and is_plain:  # which may be older than what the trace computes
            return VariableTracker.build(tx, function(*whole[1][1], **whole[1][2]))
        if is_users:
            self._remembered[id(made)] = made, function.__qualname__
        return made

    def _note_sets(self, variables: Iterable[Any], tx: Any) -> None:
        for item in variables:
            variable = item.realize()
            # The set of a literal is filled from a constant one.
            is_constant = kind_of(variable) is frozenset and variable not in self._new
            is_own = is_constant and (item.source is None or _is_asked_by_torch(tx))
            is_indifferent = (is_own or id(variable) in self._of_torch) and not _is_for_users(tx)
            if not isinstance(variable, self._sets) or is_indifferent:
                continue
            if item.source is not None:
                self._evaluations.note("order", source_name(item.source), None)
                if not tx.output.side_effects.is_modified(variable):
                    continue
            if not _is_algebra(tx) and not self._new.put_in_order(variable, self._note_call):
                members = getattr(variable, "items", None)  # none: a class of the user's around a set
                self._note_hashes([variable] if members is None else values(members))
                if len(variable.items) > 1 and not is_constant and _is_for_users(tx):
                    self._refuse(_NO_ORDER)

    def _note_hashes(self, variables: Iterable[Any]) -> None:
        """Note that hashes count, unless those of numbers; refuse those of addresses."""
        for variable in variables:
            if has_hash_of_address(variable):
                self._refuse(
                    f"{variable.python_type().__qualname__} objects hash by their addresses, on which hash() "
                    "and the order of a set hang, and which no other process has; use a list or a number"
                )
            elif not is_number(variable):
                self._note_call(hash, (HASHED,), hash(HASHED))

    def _note_call(self, *call: Any) -> None:
        if self._held is None:
            self._evaluations.note_call(*call)
        else:
            self._held.append(call)


def _is_look_up(tx: Any) -> bool:
    """True if the hash of an enum's member or of a dataclass is made, of which only equality counts.

    Where user code asks for the hash of such an object, that call is the one that notes it.
    """
    code: CodeType = tx.f_code
    is_made = code.co_qualname.startswith("__create_fn__") or is_pinned_module(tx.f_globals.get("__name__"))
    return code.co_name == "__hash__" and is_made


def _methods_of(kind: type) -> Iterator[CodeType]:
    """The user's special methods of a type, but those that ``dataclass`` made."""
    for name, value in (item for base in kind.__mro__ for item in tuple(vars(base).items())):
        is_special = name.startswith("__") and name.endswith("__") and name not in _NOT_ASKED
        code = value.__code__ if is_special and is_users_function(value) else None
        if code is not None and not code.co_qualname.startswith("__create_fn__"):
            yield code


def _one_of_many(variable: Any) -> tuple[Any, ...]:
    """A constant of which Python may hold several equal ones; empty for others."""
    try:
        value = variable.as_python_constant()
    except Exception:  # noqa: BLE001 - Dynamo raises errors of several kinds
        return ()
    is_one = type(value) not in _MANY or not value or (type(value) is int and value in _MADE_ONCE)
    return () if is_one else (value,)


def _set_classes() -> tuple[type[Any], ...]:
    """Variables of sets whose order follows from hashes."""
    names = {"SetVariable", "FrozensetVariable", "UserDefinedSetVariable"}
    in_order = {"OrderedSetVariable", "DictKeySetVariable"}
    return tuple(
        cls
        for cls in with_subclasses(VariableTracker)
        if (kinds := {base.__name__ for base in cls.__mro__}) & names and not kinds & in_order
    )


def _is_for_users(tx: Any) -> bool:
    """True if the order of a set counts for the user's code; torch's own goes over sets in any."""
    *_, asking = _asking(tx)
    return asking is not None and not is_pinned_module(asking.f_globals.get("__name__"))


def _is_asked_by_torch(tx: Any) -> bool:
    """True if code of torch goes over a set, and not of Python, which may have it from the user's code."""
    *_, asking = _asking(tx)
    return asking is None or package_of(str(asking.f_globals.get("__name__"))) == "torch"


def _is_algebra(tx: Any) -> bool:
    """True if Dynamo makes a set of sets by a function of its own, which asks for no order."""
    return any(each.f_code.co_name.startswith(_ALGEBRA) for each in [*_asking(tx)][:-1])


def _asking(tx: Any) -> Iterator[Any]:
    """Functions by which Dynamo does what Python's code of C does, innermost first, and their caller."""
    while tx is not None and str(tx.f_globals.get("__name__")).startswith(_POLYFILLS):
        yield tx
        tx = getattr(tx, "parent", None)
    yield tx


def _kept_call(function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any] | None:
    """The call that repeats what a function makes of constants; None where no process can make it."""
    name = f"{function.__module__}:{function.__qualname__}"
    try:
        constants = tuple(item.realize().as_python_constant() for item in args)
        named = {key: item.realize().as_python_constant() for key, item in kwargs.items()}
        return kept_result, (name, constants, named), kept_result(name, constants, named)
    except Exception:  # noqa: BLE001 - whatever the function and its arguments raise
        return None


PROBES = {
    "keys of dicts are wrapped in a class that says so": lambda: any(
        [*target.places()] for target in targets_of(ValueHooks._realize_key)
    ),
    "sets have variables of their own": lambda: len(_set_classes()) > 1,
}
