"""Errors that a traced method raises itself: told from graph breaks, and named as Python would name them.

Dynamo reports both alike. An exception that nothing in the method catches, a call whose arguments do not fit,
an assertion that is false, an operator whose shapes do not fit: to move code about helps none of them.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Any, Final

import torch
from torch._dynamo.exc import ObservedException, TorchRuntimeError, observed_exception_map

from warmrank.worker.errors import FunctionRaised
from warmrank.worker.torch_private.patching import steps_in

_log = logging.getLogger(__name__)

_OBSERVED: Final = "Observed exception"
_ASSERTION: Final = "Data-dependent assertion failed (cannot compile partial graph)"
"""Dynamo says so of a value that it knows to be false; one that depends on data is asserted in the graph."""

_NAME: Final = "failed to find name in frame builtins"
# Kinds of break whose cause is an exception of an operator's, or of Python's.
_OF_PYTHON: Final = (
    "RuntimeError when making fake tensor call", "TypeError when making fake tensor call",
    "Tensor device mismatch", "failed to bind arguments when attempting to inline",
)  # fmt: skip

_TORCH: Final = Path(torch.__file__).parent
_RAISED = re.compile(r"raised exception \w+\((.*)\)", re.DOTALL)
_OF_TRACER = re.compile("data pointer|convert all Tensors to FakeTensors")
_SYMBOL = re.compile(r"\bs\d+\b")
_UNKNOWN = re.compile(r"Failed to find name `(\w+)`")


class ShapeNotes:
    """Notes what knows the sizes of symbols; gives texts of exceptions their arguments, as from 2.12 on."""

    def __init__(self) -> None:
        self.environments: list[Any] = []

    @steps_in("torch._dynamo.output_graph:OutputGraph", "__init__")
    def _init(self, original: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        original(graph, *args, **kwargs)
        self.environments.append(graph.shape_env)

    @steps_in("torch._dynamo.variables:ExceptionVariable", "__str__")
    def _told(self, _original: Any, variable: Any) -> str:
        args = ", ".join(
            repr(_value_of(arg)) if arg.is_python_constant() else _value_of(arg) for arg in variable.args
        )
        return f"{variable.python_type_name()}({args})"


def raised_by(
    method: Callable[..., Any],
    error: BaseException,
    shapes: Sequence[Any],
    handled: BaseException | None = None,
) -> FunctionRaised | None:
    """The error that the method raised itself; None where ``error``, Dynamo's, tells of a graph break.

    ``handled`` was being handled when the trace began: it caused nothing of this.
    """
    stopped, said = _said(error, handled)
    if not said:
        return None
    name = getattr(method, "__qualname__", repr(method))
    where = _where(method, list(getattr(stopped, "real_stack", None) or ()))
    # The sizes of this call in place of Dynamo's symbols for them, which nobody wrote.
    sizes = {str(symbol): str(size) for known in shapes for symbol, size in known.backed_var_to_val.items()}
    said = _SYMBOL.sub(lambda found: sizes.get(found[0], found[0]), said)
    _log.info("%s raised %s; Dynamo says: %s", name, said, error)
    msg = (
        f"{said} ({where}). It was raised while {name} was traced for these arguments; call it without the "
        "cache to debug it."
    )
    return FunctionRaised(msg, function=name, reason=said, where=where)


def _said(error: BaseException, handled: BaseException | None) -> tuple[BaseException, str]:
    """The holder of the stack, and the exception as Python prints it; nothing for a graph break."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause is not handled:
        chain.append(cause)
    kind, cause = getattr(error, "gb_type", ""), chain[1] if len(chain) > 1 else None
    if isinstance(error, TorchRuntimeError):
        kind, cause = str(error).partition("\n")[0], chain[-1]  # what it wraps differs by release
    observed = error if isinstance(error, ObservedException) else cause
    if isinstance(observed, ObservedException) and (observed is error or kind == _OBSERVED):
        kinds = (kind for kind, known in observed_exception_map.items() if known is type(observed))
        raised = next(kinds, Exception)
        return observed, _printed(raised.__name__, _text_of(observed.args, issubclass(raised, KeyError)))
    if kind == _ASSERTION:
        stack = getattr(error, "real_stack", None)
        return error, _printed("AssertionError", (stack[-1].line or "") if stack else "")
    if kind == _NAME and (unknown := _UNKNOWN.search(str(error))):
        return error, _printed("NameError", f"name {unknown[1]!r} is not defined")
    # A kernel that reads memory, or a tensor that the tracer does not know: the method may well be right.
    if kind in _OF_PYTHON and cause is not None and not _OF_TRACER.search(str(cause)):
        text = str(cause).replace("FakeTensor", "Tensor")
        return error, _printed(type(cause).__name__, text)
    return error, ""


def _text_of(args: tuple[Any, ...], is_key: bool) -> str:
    """``str`` of an exception with these arguments, which Dynamo keeps as variables or as text."""
    if len(args) == 1 and isinstance(args[0], str):
        found = _RAISED.fullmatch(args[0])
        if found is None:
            return args[0]
        try:
            values = ast.literal_eval(f"({found[1]},)") if found[1] else ()
        except (SyntaxError, ValueError):  # no literals: tensors, for example
            return found[1]
    else:
        values = tuple(map(_value_of, args))
    return str(KeyError(*values) if is_key else Exception(*values))


def _value_of(variable: Any) -> Any:
    return variable.as_python_constant() if variable.is_python_constant() else variable.debug_repr()


def _printed(kind: str, text: str) -> str:
    return f"{kind}: {text}" if text else kind


def _where(method: Callable[..., Any], stack: list[FrameSummary]) -> str:
    """The innermost line that is not torch's, and the method's: ``a.py:12 in attend, from m.py:9 in M.f``."""
    if not stack:
        return "place unknown"
    users = (frame for frame in reversed(stack) if not Path(frame.filename).is_relative_to(_TORCH))
    own, first = next(users, stack[-1]), stack[0]
    code: Any = getattr(getattr(method, "__func__", method), "__code__", None)
    is_method = code and (first.filename, first.name) == (code.co_filename, code.co_name)
    entry = f"{_line(first)} in {code.co_qualname if is_method else first.name}"
    return entry if own is first else f"{_line(own)} in {own.name}, from {entry}"


def _line(frame: FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"
