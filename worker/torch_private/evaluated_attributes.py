"""Attributes that traced code asked for and that were not there, or whose presence alone it asked for.

Dynamo leaves no guard where a missing member ends in an exception that is caught, nor where ``hasattr`` asks
a module, a function or a partial.

Facts relied upon (``tests/unit/test_evaluated_attributes.py``), of torch 2.11 to 2.15:

* every read of an attribute passes a method of the variable, or of a base class of it, that is called
  ``var_getattr`` (up to 2.13) or ``tp_getattro_impl``, and raises ``ObservedAttributeError`` where Python
  raises ``AttributeError``; every ``hasattr`` passes ``call_obj_hasattr``, which returns a constant;
* `LazyVariableTracker` only forwards to the variable that it becomes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from worker.torch_private.lowering import source_name
from worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.exc": "ObservedAttributeError",
    "torch._dynamo.variables.base:VariableTracker": "call_obj_hasattr",
    "torch._dynamo.variables.lazy": "LazyVariableTracker",
}

_GETTERS = ("var_getattr", "tp_getattro_impl")
_ASKERS = ("call_obj_hasattr",)
Note = Callable[[str, str, Any], None]


@contextlib.contextmanager
def noted_attributes(note: Note) -> Iterator[None]:
    """Tell ``note`` of each attribute whose absence, or mere presence, a trace relies on."""
    from torch._dynamo.exc import ObservedAttributeError
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.lazy import LazyVariableTracker

    asked: list[tuple[int, str]] = []  # by callers, who may find it elsewhere after all

    def outermost(variable: Any, tx: Any, name: str, original: Callable[..., Any]) -> Any:
        asked.append((id(variable), name))
        try:
            answer = original(variable, tx, name)
        except ObservedAttributeError:
            _note_unless_written(note, tx, variable, name, present=False)
            raise
        finally:
            asked.pop()
        if original.__name__ in _ASKERS and answer.is_python_constant():
            _note_unless_written(note, tx, variable, name, present=bool(answer.as_python_constant()))
        return answer

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def ask(variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or (id(variable), name) in asked:
                return original(variable, tx, name, *args, **kwargs)
            return outermost(variable, tx, name, original)

        return ask

    with contextlib.ExitStack() as stack:
        for cls in _with_subclasses(VariableTracker):
            for method in {*_GETTERS, *_ASKERS} & vars(cls).keys():
                if cls is not LazyVariableTracker:
                    stack.enter_context(wrapped(cls, method, wrap))
        yield


def _note_unless_written(note: Note, tx: Any, variable: Any, name: str, *, present: bool) -> None:
    """Note the answer of an object that was there before the call; the call may have written to it since."""
    if variable.source is None or tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
        return
    source = source_name(variable.source)
    if not present and _is_there(tx, source, name):
        return  # Dynamo's own mistake (`__func__` of a method, in 2.15), which is the same in every process
    note("has_attr" if present else "no_attr", source, name)


def _is_there(tx: Any, source: str, name: str) -> bool:
    try:
        owner = eval(source, {"L": tx.output.local_scope, "G": tx.output.global_scope})  # noqa: S307 - as Dynamo
        return hasattr(owner, name)
    except Exception:  # noqa: BLE001 - no expression, or the user's own code
        return False


def _with_subclasses(cls: type[Any]) -> list[type[Any]]:
    """A class and all below it, each once."""
    found: dict[type[Any], None] = {cls: None}
    for one in cls.__subclasses__():
        found.update(dict.fromkeys(_with_subclasses(one)))
    return list(found)


def _has_a_getter() -> bool:
    from torch._dynamo.variables.base import VariableTracker

    return any(name in vars(VariableTracker) for name in _GETTERS)


PROBES = {f"attributes are read by {' or '.join(_GETTERS)}": _has_a_getter}
