"""Calls of Python's and the user's functions that Dynamo answers by making them, and not by tracing them.

What follows from constants alone needs no condition. What is read from the process becomes one: the call is
made again. An answer with an address in it, or one for which somebody's own code ran, is refused.

Facts relied upon (``tests/unit/test_evaluated_folds.py``), of torch 2.11 to 2.15: every call passes
``call_function`` of the called variable; code that is traced passes ``InstructionTranslatorBase.run``.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from warmrank.worker.keys.code import globals_module, is_pinned_module, layers
from warmrank.worker.torch_private.evaluated_attributes import with_subclasses
from warmrank.worker.torch_private.evaluated_calls import Arguments
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase": "run push(val) f_code",
    "torch._dynamo.variables.base:VariableTracker": "call_function(tx, args, kwargs)",
    "torch._dynamo.variables.functions": "SkipFunctionVariable",
    "torch._dynamo.variables.torch": "TorchInGraphFunctionVariable",
}
# Modules whose functions give the same for the same arguments, in every process of one Python and one torch.
_PURE: Final = frozenset(
    {
        "builtins", "_operator", "operator", "math", "cmath", "re", "struct", "_struct", "typing", "numpy",
        "torch", "torch._C", "enum", "collections", "functools", "_functools", "itertools", "copy", "inspect",
        "types", "abc", "_abc", "dataclasses", "string", "numbers", "fractions", "decimal", "_decimal",
        "datetime", "torch.utils._pytree",
    }
)  # fmt: skip
_WRITING: Final = (
    setattr,
    delattr,
    object.__setattr__,
    object.__delattr__,
    type.__setattr__,
    type.__delattr__,
)
_PRINTING: Final = (str, repr, ascii, format)
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}")
Note = Callable[[Callable[..., Any], Arguments | None, Any], None]


class NotedFolds:
    """Tells of calls whose answers may be others in another process."""

    def __init__(self, note: Note, refuse: Callable[[str], None]) -> None:
        """Make the watch of one trace.

        Args:
            note: told of a call that reads the state of the process: function, arguments, result.
            refuse: told of what no condition can cover.
        """
        self._note, self._refuse = note, refuse
        self._num_calls = self._num_runs = 0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced within the context."""
        from torch._dynamo.symbolic_convert import InstructionTranslatorBase
        from torch._dynamo.variables.base import VariableTracker
        from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

        def wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
            def run(translator: Any) -> Any:
                self._num_runs += 1
                return original(translator)

            return run

        def wrap_push(original: Callable[..., Any]) -> Callable[..., Any]:
            def push(translator: Any, variable: Any) -> None:
                self._text(variable, translator.f_code.co_consts)
                original(translator, variable)

            return push

        with contextlib.ExitStack() as stack:
            stack.enter_context(wrapped(InstructionTranslatorBase, "run", wrap_run))
            stack.enter_context(wrapped(InstructionTranslatorBase, "push", wrap_push))
            stack.enter_context(wrapped(TorchInGraphFunctionVariable, "call_function", self._unseen))
            for cls in with_subclasses(VariableTracker):
                if "call_function" in vars(cls) and cls is not TorchInGraphFunctionVariable:
                    stack.enter_context(wrapped(cls, "call_function", self._call))
            yield

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(variable: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            self._num_calls += 1
            before = self._num_calls, self._num_runs
            answer = original(variable, tx, args, kwargs)
            if before == (self._num_calls, self._num_runs):  # no other call, nothing traced
                self._text(answer, ())
                self._fold(variable, args, kwargs, answer)
                self._address(variable, tx, answer)
                self._printed(variable, tx, args, answer)
            return answer

        return call_function

    def _unseen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(variable: Any, *args: Any, **kwargs: Any) -> Any:
            marked = [layer for layer in layers(variable.value) if _name_of_users(layer)]
            if marked:
                self._refuse(
                    f"{marked[0].__module__}.{marked[0].__qualname__} is marked allow_in_graph or "
                    "nonstrict_trace, so a change of what it does could not be noticed; take the mark away, "
                    "or make it a custom operator (torch.library.custom_op)"
                )
            return original(variable, *args, **kwargs)

        return call_function

    def _text(self, variable: Any, written: Sequence[Any]) -> None:
        """Refuse a text with an address, unless the code has it as a literal, or a guard compares it."""
        text = vars(variable.unwrap()).get("value")
        if type(text) is str and variable.source is None and _ADDRESS.search(text) and text not in written:
            self._refuse(
                f"{_ADDRESS.sub('0x...', text)} is text with an address, which no other process has; give "
                "the class a __repr__, or ask the object for what tells it apart"
            )

    def _address(self, variable: Any, tx: Any, answer: Any) -> None:
        """Refuse the id of an object; Python and torch themselves only compare them."""
        if getattr(variable, "fn", None) is not id or is_pinned_module(tx.f_globals.get("__name__")):
            return
        if answer.is_python_constant():
            self._refuse(
                "id() of an object that was there before the call is an address, which no other process has; "
                "compare objects with `is`, or key them by a name"
            )

    def _printed(self, variable: Any, tx: Any, args: Sequence[Any], answer: Any) -> None:
        """Refuse the text of an object, for which its class's code, or torch's, ran without being traced."""
        if getattr(variable, "fn", None) not in _PRINTING or is_pinned_module(tx.f_globals.get("__name__")):
            return
        if len(args) == 1 and _constants(*args) is None and _constants(answer) is not None:
            value = vars(args[0].unwrap()).get("value")
            if value is not None and not isinstance(value, BaseException):
                self._refuse(
                    f"the text of a {type(value).__qualname__} is made while the function is traced, so what "
                    "it tells of could not be noticed; ask the object for that, or keep it as an attribute"
                )

    def _fold(self, variable: Any, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any) -> None:
        result = _result(variable, answer)
        if result is None or not (called := _constants(variable)):
            return
        given, function = _constants(*args, *kwargs.values()), called[0]
        if given is None or (isinstance(function, type) and not issubclass(function, enum.Enum)):
            return  # what a class makes holds its arguments, and answers nothing
        if function in _WRITING:
            return  # which the frame does later, and nobody may do now
        positional, named = given[: len(args)], dict(zip(kwargs, given[len(args) :], strict=True))
        own = getattr(function, "__self__", None)
        code = _name_of_users(function)
        if not code and not all(map(_is_plain, (*given, own))):
            code = _code_run_by(function, positional, named)
        if code:
            self._refuse(
                f"{code} is called while the function is traced, and is not traced itself, so what it "
                "depends on could not be noticed; call it by its name, or keep its result as an attribute"
            )
        elif not _is_pure(function, own):
            self._note(function, (positional, named), result[0])


def _result(variable: Any, answer: Any) -> tuple[Any, ...] | None:
    """The constant that a call gave; None where it gave none, or something that a guard compares."""
    from torch._dynamo.variables.functions import SkipFunctionVariable

    if answer.source is not None:
        return None
    if isinstance(variable, SkipFunctionVariable):  # which no trace enters
        return (vars(answer.unwrap()).get("value"),)
    result = _constants(answer)
    return None if result == (None,) else result


def _constants(*variables: Any) -> tuple[Any, ...] | None:
    """What variables stand for; None where Dynamo has not looked at one, or one is no constant."""
    if not all(map(_is_known, variables)):
        return None
    try:
        return tuple(variable.as_python_constant() for variable in variables)
    except Exception:  # noqa: BLE001 - Dynamo raises errors of several kinds, and runs the user's code
        return None


def _is_known(variable: Any) -> bool:
    """Whether nothing within a variable is put off until it is looked at."""
    if not getattr(variable, "is_realized", lambda: True)():
        return False
    items = vars(variable.unwrap()).get("items", ())
    members = (*items.keys(), *items.values()) if isinstance(items, dict) else items
    return not isinstance(items, dict | list | tuple | set) or all(
        _is_known(vars(member).get("vt", member)) for member in members
    )


def _is_pure(function: Any, own: Any) -> bool:
    owner = getattr(function, "__objclass__", None) or (None if isinstance(own, ModuleType) else own)
    if owner is not None:
        kind = owner if isinstance(owner, type) else type(owner)
        return kind.__module__ in _PURE
    return str(getattr(function, "__module__", type(function).__module__)) in _PURE


def _name_of_users(function: Any) -> str:
    """The name of a function of the user's; empty for others."""
    if isinstance(function, FunctionType) and not is_pinned_module(globals_module(function)):
        return function.__qualname__
    return ""


def _is_plain(value: Any) -> bool:
    """Whether nobody's own code can answer for a value."""
    if isinstance(value, list | tuple | set | frozenset | dict) and is_pinned_module(type(value).__module__):
        members = (*value, *value.values()) if isinstance(value, dict) else value
        return all(map(_is_plain, members))
    if isinstance(value, functools.partial):
        return all(map(_is_plain, (value.func, *value.args, *value.keywords.values())))
    if isinstance(value, type | FunctionType) and not is_pinned_module(value.__module__):
        return False
    return is_pinned_module(type(value).__module__)


def _code_run_by(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The name of the first function of the user's that a call runs; empty if it runs none."""
    found: list[str] = []

    def seen(frame: FrameType, event: str, _argument: Any) -> None:
        name = str(frame.f_globals.get("__name__"))
        if event == "call" and not is_pinned_module(name) and not name.startswith("namedtuple_"):
            found.append(frame.f_code.co_qualname)

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # it runs code that has nothing to do with the call
    sys.setprofile(seen)
    try:
        with contextlib.suppress(Exception):  # of the user's own code
            function(*args, **kwargs)
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return next((name for name in found if name != "_code_run_by"), "")
