"""Exceptions that traced code makes: their texts, arguments and causes are Python's.

Dynamo takes the text of an exception for that of its arguments, leaves out what ``__init__`` hands on to a
base, and what is assigned to ``args``, and loses the cause of one that a call keeps. It knows neither the
attributes that Python makes of arguments (``errno``, ``value``) nor the class of a numbered `OSError`.
"""

from __future__ import annotations

import inspect
from types import MemberDescriptorType
from typing import Any, Final

from torch._dynamo.variables import TupleVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.user_defined import UserDefinedExceptionObjectVariable

from warmrank.worker.torch_private.arithmetic import decided
from warmrank.worker.torch_private.containers import is_own
from warmrank.worker.torch_private.patching import named, steps_in, with_subclasses

_OF_USERS: Final = "torch._dynamo.variables.user_defined:UserDefinedExceptionObjectVariable"
# Python's, whose module differs by release, and the user's.
ERRORS: Final = (named("torch._dynamo.variables:ExceptionVariable"), UserDefinedExceptionObjectVariable)
_PLAIN: Final = frozenset(
    error
    for error in with_subclasses(BaseException)
    if error.__module__ == "builtins" and error.__basicsize__ == BaseException.__basicsize__
)
"""Exceptions of Python's that keep their arguments, and nothing else."""
_OF_ARGUMENTS: Final = (OSError, StopIteration, SystemExit)
"""Exceptions with attributes that are arguments; those of others, such as `NameError`, Python sets itself."""


class Exceptions:
    """Steps in where an exception is made, changed, written, or told as text."""

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_function(tx, args, kwargs)")
    def _choose_class(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Make an `OSError` as one of its number's class."""
        if variable.fn is OSError and all(arg.is_python_constant() for arg in args):
            kind = type(OSError(*[arg.as_python_constant() for arg in args]))
            variable = VariableTracker.build(tx, kind)
        return original(variable, tx, args, kwargs)

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_str(tx, arg)")
    def _tell(self, original: Any, variable: Any, tx: Any, error: Any) -> Any:
        """The text of an exception: that of its arguments with most of Python's classes, not with all."""
        held = error.realize()
        if isinstance(held, UserDefinedExceptionObjectVariable) and is_own(held.exc_type, "__str__"):
            return held.call_method(tx, "__str__", [], {})
        if not isinstance(held, ERRORS) or not all(arg.is_python_constant() for arg in held.args):
            return original(variable, tx, error)
        known: Any = next(base for base in held.exc_type.__mro__ if base.__module__ == "builtins")
        return VariableTracker.build(tx, str(known(*[arg.as_python_constant() for arg in held.args])))

    @steps_in("torch._dynamo.variables.misc:SuperVariable", "call_method(tx, name, args, kwargs)")
    def _begin(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Give an exception of the user's the arguments that its ``__init__`` hands on to Python's."""
        error = variable.objvar
        is_begun = name == "__init__" and isinstance(error, UserDefinedExceptionObjectVariable) and not kwargs
        if is_begun and base_after(variable, error.exc_type, name) in _PLAIN:
            return _begun(tx, error, args)
        return original(variable, tx, name, args, kwargs)

    @steps_in("torch._dynamo.variables.builtin:BuiltinVariable", "call_method(tx, name, args, kwargs)")
    def _begin_by_name(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The same for ``Base.__init__(self, ...)``."""
        error: Any = args[0].realize() if args and not kwargs else None
        is_begun = name == "__init__" and isinstance(error, UserDefinedExceptionObjectVariable)
        if is_begun and variable.fn in _PLAIN and issubclass(error.exc_type, variable.fn):
            return _begun(tx, error, args[1:])
        return original(variable, tx, name, args, kwargs)

    @steps_in(
        "torch._dynamo.variables:ExceptionVariable",
        "var_getattr(tx, name)",
        "tp_getattro_impl(tx, name)",  # from torch 2.15 on
        is_optional=True,
    )
    def _read(self, original: Any, error: Any, tx: Any, name: str) -> Any:
        """An attribute that Python makes of arguments."""
        kind = error.exc_type
        is_kept = name == "args" or isinstance(inspect.getattr_static(kind, name, None), MemberDescriptorType)
        is_set = tx.output.side_effects.has_pending_mutation_of_attr(error, name)
        if not is_kept or is_set or not issubclass(kind, _OF_ARGUMENTS) or kind.__module__ != "builtins":
            return original(error, tx, name)
        value = getattr(kind(*error.args), name)  # one of these variables, or several, or a constant
        if isinstance(value, tuple):  # without the name of a file
            return TupleVariable([*value])
        return value if isinstance(value, VariableTracker) else VariableTracker.build(tx, value)

    @steps_in(_OF_USERS, "call_method(tx, name, args, kwargs)", is_optional=True)
    def _set(self, original: Any, error: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Read the arguments that code of the user's sets; write a cause, which Dynamo reads alone."""
        made = original(error, tx, name, args, kwargs)
        if name == "__setattr__" and args[0].is_constant_match("args"):
            _model(error).args = args[1].unpack_var_sequence(tx)
        elif name == "__setattr__" and args[0].is_constant_match("__cause__"):
            tx.output.side_effects.store_attr(error, "__cause__", args[1])
        return made

    @steps_in(_OF_USERS, "reconstruct(codegen)", is_optional=True)  # from torch 2.15 on
    def _make(self, _original: Any, error: Any, codegen: Any) -> None:
        """Make an exception without its ``__init__``, which ran in the trace."""
        kind = error.mutation_type.cls_source
        codegen.add_push_null(lambda: (codegen(kind), codegen.load_attr("__new__")))
        codegen.foreach([kind, *error.args])
        codegen.call_function(1 + len(error.args), False)

    @steps_in("torch._dynamo.variables.object_protocol", "generic_str(tx, obj)", is_optional=True)
    def _tell_as_base(self, original: Any, tx: Any, held: Any) -> Any:
        """The text of an exception by ``__str__`` of a base, for which Dynamo takes `repr`."""
        error = _model(held)
        told = isinstance(error, ERRORS)
        return VariableTracker.build(tx, str).call_function(tx, [error], {}) if told else original(tx, held)


def base_after(variable: Any, cls: type, name: str) -> Any:
    """The class that ``super()``, a variable, finds a method in; None where that cannot be told."""
    bases = iter(cls.__mro__)
    after = variable.typevar.as_python_constant() in bases  # which ends there
    return next((base for base in bases if name in vars(base)), None) if after else None


def _begun(tx: Any, error: Any, args: Any) -> Any:
    """Give an exception arguments; it is written with those of ``__new__``, which ``__init__`` replaces."""
    error.init_args = _model(error).args = [*map(decided, args)]
    return VariableTracker.build(tx, None)


def _model(error: Any) -> Any:
    """The variable that keeps an exception's arguments: up to torch 2.14 one below that of the user's."""
    return getattr(error, "exc_vt", error)
