"""Errors that a traced method raises itself: told from graph breaks, named as Python names them, and caught.

Dynamo reports both alike. An exception that nothing in the method catches, a call whose arguments do not fit,
an assertion that is false, an operator whose shapes do not fit: to move code about helps none of them.
Where traced code may catch one, it is raised there: that of an import, if a later process fails with it too,
and that of an operator, whose text cannot be read. Assertions on data are checked by the graph, and refused
where they may be caught.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary, walk_tb
from typing import Any, Final

import torch
import torch._dynamo.config as dynamo_config
from torch._dynamo.exc import (
    ObservedAttributeError,
    ObservedException,
    TorchDynamoException,
    TorchRuntimeError,
    handle_observed_exception,
    observed_exception_map,
)
from torch._dynamo.symbolic_convert import InstructionTranslatorBase as _Tracer
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx import map_arg
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from warmrank.worker import repeatable
from warmrank.worker.errors import FunctionRaised, GraphBreak, NotPortable, WorkerError
from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.torch_private.patching import steps_in

_log = logging.getLogger(__name__)

_OBSERVED: Final = "Observed exception"
_ASSERTION: Final = "Data-dependent assertion failed (cannot compile partial graph)"
"""Dynamo says so of a value that it knows to be false; one that depends on data is asserted in the graph."""

_OF_DYNAMO: Final = re.compile(
    r"\n\s*For more details about this graph break|\n+from user code:\n|\nSet TORCHDYNAMO_VERBOSE"
)
# Of no help here: marks and variables that are not followed, and reports to PyTorch.
_NOT_FOLLOWED: Final = re.compile(r" or, if it is traceable, use `torch\.compiler\.allow_in_graph`")
_NO_HINT: Final = re.compile(r"\b(report|file) an issue\b|TORCHDYNAMO_|allow_in_graph")
_NAME: Final = "failed to find name in frame builtins"
_BINDING: Final = "failed to bind arguments when attempting to inline"
# Kinds of break whose cause is an exception of an operator's, or of Python's.
_OF_PYTHON: Final = (
    "RuntimeError when making fake tensor call", "TypeError when making fake tensor call",
    "Tensor device mismatch", _BINDING,
)  # fmt: skip

_TRANSLATOR: Final = "torch._dynamo.symbolic_convert:InstructionTranslatorBase"
_LOADS: Final = "LOAD_ASSERTION_ERROR"
_CHECKS: Final = {
    torch._check: RuntimeError, torch._check_index: IndexError, torch._check_value: ValueError,
    torch._check_type: TypeError, torch._check_not_implemented: NotImplementedError,
}  # fmt: skip
_FAILS_ON_DATA: Final = frozenset(
    {
        "cholesky", "cholesky_inverse", "cond", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inverse",
        "ldl_factor", "lstsq", "lu_factor", "matrix_power", "matrix_rank", "pinv", "pinverse", "solve", "svd",
        "svdvals", "tensorinv", "tensorsolve",
    }
)  # fmt: skip
"""Operators that refuse matrices for what is in them, by their names without ``linalg_``."""
_OF_IMPORTS: Final = ImportError, ModuleNotFoundError
_NOT_WRITTEN: Final = (str(Path(torch.__file__).parent), repeatable.__file__)
"""Files without a line of the user's."""

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


class Raising:
    """Steps in where traced code asserts, checks or imports, or an operator fails."""

    def __init__(self, note_call: Callable[..., None]) -> None:
        """``note_call`` takes function, arguments and result of a call that the graph relies on."""
        self._note_call = note_call
        self._translator: Any = None  # the innermost

    @steps_in(_TRANSLATOR, "step")
    def _step(self, original: Any, tx: Any) -> Any:
        """Assert in the graph also what is negated, or told with a text that is no constant."""
        self._translator, pointer = tx, tx.instruction_pointer
        if pointer is None:
            return original(tx)
        jump, *following = tx.instructions[pointer : pointer + 4]
        if jump.opname == "SEND":
            return _send(original, tx)
        skips = [one.opname for one in following[:1]] == [_LOADS]
        if not jump.opname.startswith("POP_JUMP_") or not (skips or jump.target.opname == _LOADS):
            return original(tx)
        if _is_caught(tx, jump):
            with dynamo_config.patch(rewrite_assert_with_torch_assert=False):  # which nothing would catch
                return original(tx)
        asserted, is_true = tx.stack[-1].realize(), skips == ("TRUE" in jump.opname)
        is_plain = skips and any(one.opname in ("RAISE_VARARGS", "PRECALL", "CALL") for one in following)
        if not asserted.is_tensor() or (is_true and is_plain):
            return original(tx)
        if not is_true:
            asserted = _call(tx, torch.logical_not, asserted)
        _call(tx, torch._assert_async, asserted, tx.frame_summary().line or "assertion error")
        tx.pop()
        tx.instruction_pointer = pointer + 1
        if skips:
            tx.jump(jump)
        return True

    @steps_in("torch._dynamo.variables.torch:TorchInGraphFunctionVariable", "call_function(tx, args, kwargs)")
    def _check(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Check what does not depend on data by Python's branches, with any message."""
        error = _CHECKS.get(variable.value) if args else None
        if error is None:
            return original(variable, tx, args, kwargs)
        condition = args[0].realize()
        of_sizes = isinstance(condition, SymNodeVariable) and not free_unbacked_symbols(condition.sym_num)
        if not (of_sizes or condition.is_python_constant()):
            return original(variable, tx, args, kwargs)
        given = type(condition.sym_num) if of_sizes else condition.python_type()
        if given not in (bool, torch.SymBool):
            plain = condition.python_type()
            return _call(tx, repeatable.get_raised, TypeError, f"cond must be a bool, but got {plain}")
        return _call(tx, repeatable.get_checked, error, *args, **kwargs)

    @steps_in("torch._dynamo.variables.tensor:TensorVariable", "_method_size_stride")
    @steps_in("torch._dynamo.variables.lists:SizeVariable", "get_item_dyn(tx, arg)")
    def _get_size(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(variable, *args, **kwargs)
        except IndexError as error:  # of a list, which is not raised in the trace
            text: Any = _Unread(str(error)) if variable.is_tensor() else "tuple index out of range"
            return _call(self._translator, repeatable.get_raised, IndexError, text)

    @steps_in("torch._dynamo.symbolic_convert", "unimplemented")
    def _break(self, original: Any, *args: Any, **kwargs: Any) -> None:
        tx, kind = self._translator, kwargs.get("gb_type")
        if kind == "Import failure" and (raised := self._import_error(tx)):
            _call(tx, repeatable.get_raised, *raised)
        if kind == _NAME and _is_caught(tx):
            name = tx.current_instruction.argval
            msg = (
                f"the function catches that there is no name {name}, which a later process may have; ask for "
                "it when the module is imported, and keep the answer in a global"
            )
            raise NotPortable(msg, what=f"a NameError of {name}")
        original(*args, **kwargs)

    @steps_in("torch._dynamo.variables.functions", "bind_args_cached(func, tx, fn_source, args, kwargs)")
    def _bind(self, original: Any, *call: Any) -> Any:
        """The arguments of a call by name; an error that may be caught where they do not fit."""
        try:
            return original(*call)
        except TypeError as error:  # from torch 2.15 on Dynamo raises it itself, in words of its own
            if not _is_caught(self._translator):
                raise
            return _call(self._translator, repeatable.get_raised, TypeError, _Unread(str(error)))

    @steps_in(_TRANSLATOR, "_load_attr(attr)")
    def _load_attribute(self, original: Any, tx: Any, name: str) -> None:
        try:
            original(tx, name)
        except ObservedAttributeError:
            is_import = tx.current_instruction.opname == "IMPORT_FROM"
            raised = self._import_error(tx) if is_import else ()
            if not raised:
                raise
            handle_observed_exception(tx)
            _call(tx, repeatable.get_raised, *raised)

    def _import_error(self, tx: Any) -> tuple[Any, ...]:
        """Class and text of what the present import raises, again at a load; empty for others' errors."""
        here = tx.indexof[tx.current_instruction]
        while tx.instructions[here].opname != "IMPORT_NAME":
            here -= 1
        level, members, name = (one.argval for one in tx.instructions[here - 2 : here + 1])
        names = f"from {'.' * level}{name} import {', '.join(members)}" if members else f"import {name}"
        package = str(tx.f_globals.get("__package__") or "")
        said = repeatable.import_error(names, package)
        self._note_call(repeatable.import_error, (names, package), said)
        kind, _, text = said.partition(": ")
        return next(((error, text) for error in _OF_IMPORTS if error.__name__ == kind), ())

    @steps_in("torch._dynamo.variables.builder", "get_fake_value(node, tx)")
    def _compute(self, original: Any, node: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise the error of an operator where it may be caught: of the kind that its own kernel raises."""
        given = node.args, node.kwargs
        name = str(getattr(node.target, "__name__", node.target)).removeprefix("linalg_")
        if name in _FAILS_ON_DATA and _is_caught(tx):
            msg = (
                f"the function catches what {name} raises, which hangs on data, so no condition can tell; "
                "ask the operator for it (cholesky_ex, inv_ex), or call it outside of the cached function"
            )
            raise NotPortable(msg, what=name)
        pending = tx.output.shape_env.pending_fresh_unbacked_symbols
        num_pending = len(pending)
        try:
            return original(node, tx, *args, **kwargs)
        except Exception as failed:  # the tracer's kernels raise what they like
            # ``float`` and ``int`` of a tensor are ``item`` here, and raise another error.
            raised = _error_of(node, *given) if name != "item" and _is_caught(tx) else None
            if raised is None:
                raise
            del pending[num_pending:]  # sizes of what was not made
            if isinstance(failed, ObservedException):
                handle_observed_exception(tx)
        if node in tx.output.graph.nodes:
            tx.output.graph.erase_node(node)
        return _call(tx, repeatable.get_raised, type(raised), _Unread(str(raised)))

    @steps_in(_TRANSLATOR, "push(val)")
    def _push(self, original: Any, tx: Any, variable: Any) -> None:
        """Refuse an error without a text that the user's code looks at, and does not only raise again."""
        here, args = tx.instruction_pointer, vars(variable.unwrap()).get("args")
        if (
            isinstance(args, list | tuple)
            and any(isinstance(one, _Unread) for one in args)
            and tx.current_instruction.opname.startswith("LOAD_")
            and not is_pinned_module(tx.f_globals.get("__name__"))
            and tx.instructions[here].opname != "RAISE_VARARGS"
        ):
            what = "a call's or an operator's error"
            msg = (
                f"the function looks at {what}, whose text may name sizes that the next call has others of; "
                "catch it without a name (`except RuntimeError:`), or ask before"
            )
            raise NotPortable(msg, what=what)
        original(tx, variable)


class _Unread(VariableTracker):
    """The text of an operator's error, with this call's sizes, or of a call's, not in Python's words."""

    def __init__(self, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._text = text

    def python_type(self) -> type:
        return str

    def debug_repr(self) -> str:
        return self._text


def _call(tx: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Trace a call of a function with variables and constants."""
    made = [one if isinstance(one, VariableTracker) else VariableTracker.build(tx, one) for one in args]
    return VariableTracker.build(tx, function).call_function(tx, made, kwargs)


def _error_of(node: Any, given_args: Any, given_kwargs: Any) -> Exception | None:
    """The error of an operator for tensors of zeros like those of the trace; None for none."""

    def made(given: Any) -> Any:
        fake = given.meta["example_value"]
        if not isinstance(fake, torch.Tensor):
            return fake.node.hint if isinstance(fake, torch.SymInt | torch.SymFloat | torch.SymBool) else fake
        sizes, strides = (
            [int(n if isinstance(n, int) else n.node.hint) for n in of] for of in (fake.shape, fake.stride())
        )
        return torch.empty_strided(sizes, strides, dtype=fake.dtype, device=fake.device).zero_()

    args, kwargs = map_arg((given_args, given_kwargs), made)
    function = getattr(args[0], node.target) if node.op == "call_method" else node.target
    try:
        function(*args[node.op == "call_method" :], **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    return None


def _is_caught(tx: Any, instruction: Any = None) -> bool:
    """True if traced code may catch what an instruction, by default the present one, raises."""
    while tx is not None:
        entry = (instruction or tx.current_instruction).exn_tab_entry
        while entry is not None:
            handler = entry.target
            following = tx.instructions[tx.indexof[handler] + 1].opname
            if handler.opname == "PUSH_EXC_INFO" and following != "WITH_EXCEPT_START":
                return True
            entry = handler.exn_tab_entry
        tx, instruction = tx.parent, None
    return False


def _send(step: Any, tx: Any) -> Any:
    """Give ``yield from`` what its generator returns at its end, as from torch 2.15 on."""
    tracer: Any = getattr(tx.stack[-2], "inline_tracer", None)
    goes_on = not getattr(tracer, "generator_exhausted", True)
    answer = step(tx)
    if goes_on and tracer.generator_exhausted:
        tx.stack[-1] = tracer.symbolic_result
    return answer


def error_of(
    method: Callable[..., Any],
    error: BaseException,
    shapes: Sequence[Any],
    handled: BaseException | None = None,
) -> FunctionRaised | GraphBreak:
    """The error that the method raised itself, or the break of the graph that ``error``, Dynamo's, tells of.

    ``handled`` was being handled when the trace began: it caused nothing of this.
    """
    stopped, said = _said(error, handled)
    if not said:
        return _broken(method, error)
    name = getattr(method, "__qualname__", None) or repr(method)
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


def note_place(method: Callable[..., Any], error: WorkerError) -> None:
    """Add the place at which a trace was refused to the error's message, unless that names it."""
    runs = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "run"]
    tracers = [tracer for frame in runs if isinstance(tracer := frame.f_locals.get("self"), _Tracer)]
    stack = [tracer.frame_summary() for tracer in tracers]
    if stack and _line(_innermost(stack)) not in error.message:
        error.message = f"{error.message} ({_where(method, stack)})"
        error.args = (error.message,)


def _broken(method: Callable[..., Any], error: BaseException) -> GraphBreak:
    """A break of the graph in Dynamo's words, but for those on Dynamo itself."""
    name = getattr(method, "__qualname__", None) or repr(method)
    said = _NOT_FOLLOWED.sub("", _OF_DYNAMO.split(str(error))[0].strip())
    if not isinstance(error, TorchDynamoException):
        said = f"Dynamo failed with {type(error).__name__}: {said}"
    first, _, more = said.partition("\n")
    stack = list(getattr(error, "real_stack", None) or ())
    line = f": {written}" if stack and (written := _innermost(stack).line) else ""
    reason = f"{first} ({_where(method, stack)}){line}"
    lines = (
        f"{name} does not form one whole graph, which a cached function must: {reason}",
        *(hint for hint in more.split("\n") if hint.strip() and not _NO_HINT.search(hint)),
        "Move what breaks the graph out of the function, or split the function there.",
    )
    return GraphBreak("\n".join(lines), function=name, reason=reason)


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
    if isinstance(error, IndexError):  # of an operator, or of a size: not wrapped
        return error, _printed("IndexError", str(error))
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
    """The innermost line that the user wrote, and the method's: ``a.py:12 in attend, from m.py:9 in M.f``."""
    if not stack:
        return "place unknown"
    own, first = _innermost(stack), stack[0]
    code: Any = getattr(getattr(method, "__func__", method), "__code__", None)
    is_method = code and (first.filename, first.name) == (code.co_filename, code.co_name)
    entry = f"{_line(first)} in {code.co_qualname if is_method else first.name}"
    return entry if own is first else f"{_line(own)} in {own.name}, from {entry}"


def _innermost(stack: list[FrameSummary]) -> FrameSummary:
    """The innermost frame that the user wrote."""
    users = (frame for frame in reversed(stack) if not frame.filename.startswith(_NOT_WRITTEN))
    return next(users, stack[-1])


def _line(frame: FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"
