"""Attributes that traced code asked for and that were not there, or whose presence alone it asked for.

Dynamo leaves no guard where a missing member ends in an exception that is caught, nor where ``hasattr`` asks
a module, a function or a partial, nor on what a class has from its metaclass, nor on annotations.

Facts relied upon (``tests/unit/test_evaluated_attributes.py``), of torch 2.11 to 2.15:

* every read of an attribute passes a method of the variable, or of a base class of it, that is called
  ``var_getattr`` (up to 2.13) or ``tp_getattro_impl``, and raises ``ObservedAttributeError`` where Python
  raises ``AttributeError``; every ``hasattr`` passes ``call_obj_hasattr``, which returns a constant;
* `LazyVariableTracker` only forwards to the variable that it becomes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.exc": "ObservedAttributeError",
    "torch._dynamo.source": "AttrSource",
    "torch._dynamo.variables.base:VariableTracker": "build(tx, value, source) call_obj_hasattr",
    "torch._dynamo.variables.lazy": "LazyVariableTracker",
}

_GETTERS = ("var_getattr", "tp_getattro_impl")
_ASKERS = ("call_obj_hasattr",)
_REGISTRIES = ("_parameters", "_buffers", "_modules")  # in the order in which a module asks them
_NOTHING = object()
Note = Callable[[str, str, Any], None]


class NotedAttributes:
    """Tells of the attributes whose presence or absence a trace relies on, and of all that are read."""

    def __init__(self, note: Note, read: Callable[[Any, str, Any], None]) -> None:
        """Make the watch of one trace.

        Args:
            note: told of each answer: ``has_attr`` or ``no_attr``, Dynamo's expression for the object, name.
            read: told of a variable, the name of an attribute, and what was read.
        """
        self._note, self._read = note, read
        self._asking: list[tuple[int, str]] = []  # callers that may find it elsewhere after all

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced within the context."""
        from torch._dynamo.variables.base import VariableTracker
        from torch._dynamo.variables.lazy import LazyVariableTracker

        with contextlib.ExitStack() as stack:
            for cls in with_subclasses(VariableTracker):
                for method in {*_GETTERS, *_ASKERS} & vars(cls).keys():
                    if cls is not LazyVariableTracker:
                        stack.enter_context(wrapped(cls, method, self._outermost))
            yield

    def _outermost(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def ask(variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or (id(variable), name) in self._asking:
                return original(variable, tx, name, *args, **kwargs)
            self._asking.append((id(variable), name))
            try:
                return self._ask(original, variable, tx, name)
            finally:
                self._asking.pop()

        return ask

    def _ask(self, original: Callable[..., Any], variable: Any, tx: Any, name: str) -> Any:
        from torch._dynamo.exc import ObservedAttributeError

        try:
            answer = original(variable, tx, name)
        except ObservedAttributeError:
            self._note_unless_written(tx, variable, name, present=False)
            raise
        if original.__name__ in _GETTERS:
            self._note_found_elsewhere(tx, variable, name)
            answer = _guarded(tx, variable, name, answer)
            self._read(variable, name, answer)
        elif answer.is_python_constant():
            self._note_unless_written(tx, variable, name, present=bool(answer.as_python_constant()))
        return answer

    def _note_unless_written(self, tx: Any, variable: Any, name: str, *, present: bool) -> None:
        """Note the answer of an object that was there before the call, and that the call did not write to."""
        if variable.source is None or tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
            return
        source = source_name(variable.source)
        if not present and _is_there(tx, source, name):
            return  # Dynamo's own mistake (`__func__` of a method, in 2.15), the same in every process
        self._note("has_attr" if present else "no_attr", source, name)

    def _note_found_elsewhere(self, tx: Any, variable: Any, name: str) -> None:
        """Note that ``__getattr__`` was asked: neither the object nor its class has anything of the name."""
        value = vars(variable).get("value")
        if variable.source is None or isinstance(value, type | ModuleType):
            return
        try:
            own = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            return
        if name in own or any(name in vars(base) for base in type(value).__mro__):
            return
        if tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
            return
        source = source_name(variable.source)
        self._note("not_in_dict", source, name)
        for registry in _REGISTRIES if isinstance(value, torch.nn.Module) else ():
            if name in own.get(registry, ()):
                break
            self._note("no_key", f"{source}.{registry}", name)


def _guarded(tx: Any, variable: Any, name: str, answer: Any) -> Any:
    """A variable for what Dynamo does not guard: a class's up to 2.11, a metaclass's, annotations."""
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables.base import VariableTracker

    function = vars(variable).get("fn")
    if name == "__annotations__" and isinstance(function, FunctionType) and variable.source is not None:
        # Torch and Python read them often, and for nothing that a graph depends on.
        pinned = is_pinned_module(tx.f_globals.get("__name__"))
        source = AttrSource(variable.source, name)
        return answer if pinned else VariableTracker.build(tx, function.__annotations__, source)
    cls = vars(variable).get("value")  # of some others a property, which makes constants of all members
    if not isinstance(cls, type) or variable.source is None:
        return answer
    owner = cls if any(name in vars(base) for base in cls.__mro__) else type(cls)
    if owner is cls and answer.source is not None:
        return answer
    value = inspect.getattr_static(owner, name, _NOTHING)
    if value is _NOTHING or hasattr(type(value), "__get__"):
        return answer
    return VariableTracker.build(tx, value, AttrSource(variable.source, name))


def _is_there(tx: Any, source: str, name: str) -> bool:
    try:
        owner = eval(source, {"L": tx.output.local_scope, "G": tx.output.global_scope})  # noqa: S307 - as Dynamo
        return hasattr(owner, name)
    except Exception:  # noqa: BLE001 - no expression, or the user's own code
        return False


def with_subclasses(cls: type[Any]) -> list[type[Any]]:
    """A class and all below it, each once."""
    found: dict[type[Any], None] = {cls: None}
    for one in cls.__subclasses__():
        found.update(dict.fromkeys(with_subclasses(one)))
    return list(found)


def _has_a_getter() -> bool:
    from torch._dynamo.variables.base import VariableTracker

    return any(name in vars(VariableTracker) for name in _GETTERS)


PROBES = {f"attributes are read by {' or '.join(_GETTERS)}": _has_a_getter}
