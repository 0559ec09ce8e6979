"""Calls that Dynamo makes itself while it traces, taking their answers for constants.

What follows from constants alone needs no condition. What is read from the process (ranks, sizes, switches,
environment variables) becomes one: the call is made again at a load. Refused are answers with an address,
and those for which user code ran. Calls are intercepted where values come from, so that no name and no way to
call matters; ranks and sizes also where user code runs for real: a fake kernel, a metaclass, a graph pass.

Relied on (``tests/fuzz/parts/evaluated.py``): ``constant_fold_functions`` holds those that read the
state of the process, and have no effects; every rank and size is read by a method of `ProcessGroup`.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch._dynamo.symbolic_convert import InstructionTranslator, _import_module
from torch._dynamo.trace_rules import _nonstrict_trace_callable_ids, torch_name_rule_map
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import SkipFunctionVariable, UserFunctionVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.torch import constant_fold_functions

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import globals_read, is_pinned_module, is_users_function, layers, package_of
from warmrank.worker.torch_private.collectives import all_to_all, broadcast, gather, reduce
from warmrank.worker.torch_private.containers import BUILTIN, method_of
from warmrank.worker.torch_private.evaluated_sets import kind_of, values
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import steps_in, steps_in_variables
from warmrank.worker.torch_private.warm import OPERATORS

if TYPE_CHECKING:
    from warmrank.worker.torch_private.evaluated import Evaluations

_OF_TORCH: Final = "TorchInGraphFunctionVariable"
_RULES: Final[Any] = torch_name_rule_map
_TRANSLATOR: Final = "torch._dynamo.symbolic_convert:InstructionTranslatorBase"
_TORCH: Final = Path(torch.__file__).parent
# Parts of torch, and packages, that read ranks for their own ends: logs, caches, the building of guards.
_INTERNAL: Final = tuple(str(_TORCH / part) for part in ("_logging", "_dynamo", "_inductor"))
EVALUATING: Final = tuple(str(_TORCH / "_dynamo" / part) for part in ("variables", "symbolic_convert.py"))
_OWN: Final = frozenset({"warmrank.worker", "torch_npu", "torchair", "npugraph_ex"})
_COLLECTIVES: Final[Any] = {
    getattr(dist, made.__name__): made for made in (all_to_all, broadcast, gather, reduce)
}
# `torch.jit.isinstance` and what it calls for plain classes, as torchaudio does.
_INSTANCE: Final = frozenset({"isinstance", "_isinstance", "check_args_exist"})
_DISTRIBUTED: Final = str(_TORCH / "distributed")
# Modules whose functions give the same for the same arguments, in every process of one Python and one torch.
_PURE: Final = frozenset(
    {
        "builtins", "_operator", "operator", "math", "cmath", "re", "struct", "_struct", "typing", "numpy",
        "torch", "torch._C", "enum", "collections", "functools", "_functools", "itertools", "copy", "inspect",
        "types", "abc", "_abc", "dataclasses", "string", "numbers", "fractions", "decimal", "_decimal",
        "datetime", "torch.utils._pytree",
    }
)  # fmt: skip
# Functions of torch's that answer for the process, of which Dynamo makes calls in the graph.
_ASKING: Final = frozenset(
    {
        torch.can_cast, torch.get_default_device, torch.get_deterministic_debug_mode,
        torch.get_float32_matmul_precision, torch.get_num_interop_threads, torch.get_num_threads,
        torch.is_deterministic_algorithms_warn_only_enabled,
        torch.backends.cpu.get_cpu_capability, torch.backends.cuda.cudnn_sdp_enabled,
        torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.math_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cudnn.is_available,
        torch.backends.mkl.is_available, torch.backends.mps.is_available, torch.backends.mps.is_built,
        torch.backends.openmp.is_available, torch.cuda.device_count, torch.cuda.get_device_capability,
        torch.cuda.is_bf16_supported, torch.xpu.device_count,
    }
)  # fmt: skip
_ASKED: Final = _ASKING | {getattr(function, "__wrapped__", function) for function in _ASKING}
_WRITING: Final = (
    setattr, delattr, object.__setattr__, object.__delattr__, type.__setattr__, type.__delattr__,
)  # fmt: skip
IMPORTED: Final = "__import__("
"""Start of the expression for a module that the function imports."""
PRINTING: Final = (str, repr, ascii, format)
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}")


class CallHooks:
    """Steps in where Dynamo makes a call itself."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations
        self._note_call, self._refuse = evaluations.note_call, evaluations.refuse
        self._evaluating: list[list[Any]] = []  # calls under evaluation, each with the groups it reads
        self._num_begun = 0  # calls and traced functions

    # Functions of torch, and the process that they read.

    @steps_in(f"torch._dynamo.variables.torch:{_OF_TORCH}", "call_function(tx, args, kwargs)")
    def _call_of_torch(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        function, read = variable.value, list[Any]()
        marks = (layer for layer in filter(is_users_function, layers(function)) if not _is_warning(layer))
        if marked := next(marks, None):
            if isinstance(function, FunctionType) and id(function) not in _nonstrict_trace_callable_ids:
                return UserFunctionVariable(function, source=variable.source).call_function(tx, args, kwargs)
            self._refuse(
                f"{marked.__module__}.{marked.__qualname__} is marked nonstrict_trace, so a change of what "
                "it does could not be noticed; take the mark away, or make it a custom operator "
                "(torch.library.custom_op)"
            )
        if isinstance(function, OPERATORS) and variable.source is not None:  # an overload has no guard
            self._evaluations.note("identity", source_name(variable.source), function)
        self._evaluating.append(read)
        try:
            answer = original(variable, tx, args, kwargs)
        finally:
            self._evaluating.pop()
        is_distributed = str(getattr(function, "__module__", "")).startswith("torch.distributed")
        # Of a tensor they say what its guards hold (``torch.is_floating_point``).
        reads_process = (
            (function in constant_fold_functions or function in _ASKED)
            and function is not torch._assert  # what it asks of sizes is a guard
            and not any(isinstance(given.realize(), TensorVariable) for given in (*args, *kwargs.values()))
        )
        if (read or is_distributed or reads_process) and answer.is_python_constant():
            given: Any = None, {}
            with contextlib.suppress(NotImplementedError):  # one that is no constant
                positional = tuple(variable.as_python_constant() for variable in args)
                given = positional, {name: item.as_python_constant() for name, item in kwargs.items()}
            self._note_call(function, given[0], answer.as_python_constant(), given[1])
        return answer

    @steps_in("torch._dynamo.variables.functions:UserFunctionVariable", "call_function(tx, args, kwargs)")
    @steps_in(
        "torch._dynamo.variables.functions:CollectiveFunctionRewriteVariable",
        "call_function(tx, args, kwargs)",
    )
    def _collective(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        """Trace a collective that Dynamo breaks at, unless it is one to wait for later.

        On a rank outside its group it does nothing.
        """
        if getattr(variable.fn, "__module__", None) != dist.distributed_c10d.__name__:
            return original(variable, tx, args, kwargs)
        names = [*inspect.signature(variable.fn).parameters]

        def given(name: str) -> list[Any]:
            place = names.index(name) if name in names else len(names)
            return [*args[place : place + 1], *(kwargs[each] for each in kwargs if each == name)]

        if "async_op" in names and any(map(_is_no_member, given("group"))):
            return ConstantVariable.create(None)
        traced = _COLLECTIVES.get(variable.fn)
        if traced is None or not all(each.is_constant_match(False) for each in given("async_op")):
            return original(variable, tx, args, kwargs)
        place = names.index("async_op")
        args, kwargs = [*args[:place], *args[place + 1 :]], {**kwargs}
        kwargs.pop("async_op", None)
        return VariableTracker.build(tx, traced).call_function(tx, args, kwargs)

    @steps_in("torch._dynamo.trace_rules", "lookup_inner(obj)")
    def _rule(self, original: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Dynamo's rule; it finds none for what was replaced in torch before Dynamo was imported."""
        rule = original(obj, *args, **kwargs)
        if rule is not SkipFunctionVariable or not isinstance(obj, BuiltinFunctionType | FunctionType):
            return rule
        if hasattr(obj, "__wrapped__"):  # the name is another function's
            return rule
        if obj.__module__ in {"torch.jit", "torch._jit_internal"} and obj.__name__ in _INSTANCE:
            return UserFunctionVariable
        name = f"{str(obj.__module__).removesuffix('.functional')}.{obj.__name__}"  # as users call them
        return next((rules[name] for rules in _RULES if name in rules), rule)

    @steps_in("torch._dynamo.variables.torch:BaseTorchVariable", "can_constant_fold_through")
    def _is_constant(self, original: Any, variable: Any) -> bool:
        return variable.value in _ASKED or original(variable)

    @steps_in("torch.distributed:ProcessGroup", "rank", "size", is_optional=True)
    def _read_group(self, original: Any, group: Any) -> int:
        result: int = original(group)
        if self._evaluating:
            self._evaluating[-1].append(group)
        elif _is_asked(sys._getframe(2)):
            function = dist.get_rank if original.__name__ == "rank" else dist.get_world_size
            self._note_call(function, (group,), result)
        return result

    @steps_in("torch._dynamo.variables.functions", "invoke_and_store_as_constant(tx, fn, name, args, kwargs)")
    @steps_in("torch._dynamo.variables.nn_module", "invoke_and_store_as_constant")
    def _assume_constant(self, original: Any, tx: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse(
            f"{function.__module__}.{function.__qualname__} is marked assume_constant_result, so a change of "
            "what it returns could not be noticed; take the mark away, or call it outside and keep the "
            "result as an attribute"
        )
        return original(tx, function, *args, **kwargs)

    # Functions of Python's and the user's.

    @steps_in(_TRANSLATOR, "run")
    def _run(self, original: Any, translator: Any) -> Any:
        """Trace, but no function with other globals than the module that conditions on them are read from."""
        self._num_begun += 1
        try:
            return original(translator)
        finally:
            own, code = translator.f_globals, translator.f_code
            name = str(own.get("__name__"))
            module = sys.modules.get(name)
            known = translator.output.global_scope, vars(module or sys)
            is_replaced = module is not None and not any(own is scope for scope in known)
            if is_replaced and not is_pinned_module(name) and any(map(own.__contains__, globals_read(code))):
                self._refuse(
                    f"{code.co_qualname} is of a module {name} whose place in sys.modules another one has "
                    "taken, so its globals could not be found again; make the object anew from that one"
                )

    @steps_in("torch._dynamo.side_effects:SideEffects", "store_global(gvar, name, value)")
    def _store_global(self, original: Any, effects: Any, variable: Any, name: str, value: Any) -> None:
        translator = InstructionTranslator.current_tx()
        if name not in translator.f_globals:  # where Dynamo finds none that the call makes
            raise NotPortable.of_global(translator.f_code.co_qualname, name)
        original(effects, variable, name, value)

    @steps_in(_TRANSLATOR, "import_source(module_name)")
    def _import(self, original: Any, translator: Any, name: str) -> Any:
        """Note that modules are there: a load imports them, with what they register, before it looks."""
        alias, known = f"__import_{name.replace('.', '_dot_')}", translator.output.global_scope
        if known.get(alias) is not sys.modules.get(name):  # but what an earlier trace found there
            known.pop(alias, None)
            _import_module.cache_clear()
        instruction = translator.current_instruction
        if instruction.opname == "IMPORT_NAME":
            members = translator.instructions[translator.indexof[instruction] - 1].argval  # loaded before
            whole = instruction.argval if instruction.argval.startswith(f"{name}.") else name
            within = (f"{whole}.{member}" for member in members or ())
            for module in (whole, *(one for one in within if one in sys.modules)):
                if not is_pinned_module(module):
                    self._evaluations.note("has_attr", f"{IMPORTED}{module!r})", "__name__")
        return original(translator, name)

    @steps_in(_TRANSLATOR, "push(val)")
    def _push(self, original: Any, translator: Any, variable: Any) -> None:
        self._refuse_address_in_text(variable, translator.f_code.co_consts)
        original(translator, variable)

    @steps_in_variables("call_function(tx, args, kwargs)", without=_OF_TORCH)
    def _call(self, original: Any, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        self._num_begun += 1
        before = self._num_begun
        answer = original(variable, tx, args, kwargs)
        if before == self._num_begun:  # no other call, nothing traced
            self._refuse_address_in_text(answer, ())
            self._fold(variable, args, kwargs, answer)
            if not is_pinned_module(tx.f_globals.get("__name__")):  # Python and torch only compare addresses
                self._refuse_id_and_text(getattr(variable, "fn", None), args, answer)
        return answer

    @steps_in_variables("as_python_constant", only="BoundBuiltinMethodVariable")  # since 2.13
    def _bound_method(self, original: Any, variable: Any) -> Any:
        """A method of C bound to its object: for some (``Pattern.match``) Python crashes without a type."""
        if not isinstance(variable.descriptor, MethodDescriptorType):
            return original(variable)
        own = variable.obj.as_python_constant()
        return variable.descriptor.__get__(own, type(own))

    def _refuse_address_in_text(self, variable: Any, written: Sequence[Any]) -> None:
        """Refuse a text with an address, unless it is a literal of the code, or a guard compares it."""
        text = vars(variable.unwrap()).get("value")
        if type(text) is str and variable.source is None and _ADDRESS.search(text) and text not in written:
            self._refuse(
                f"{_ADDRESS.sub('0x...', text)} is text with an address, which no other process has; give "
                "the class a __repr__, or ask the object for what tells it apart"
            )

    def _refuse_id_and_text(self, function: Any, args: Sequence[Any], answer: Any) -> None:
        """Refuse the id of an object, and its text, if code of its class or torch's made it untraced."""
        if function is id and answer.is_python_constant():
            self._refuse(
                "id() of an object that was there before the call is an address, which no other process has; "
                "compare objects with `is`, or key them by a name"
            )
        if function not in PRINTING or len(args) != 1:
            return
        if constants(*args) is None and constants(answer) is not None:
            value = vars(args[0].unwrap()).get("value")
            if value is not None and not isinstance(value, BaseException):
                self._refuse(
                    f"the text of a {type(value).__qualname__} is made while the function is traced, so what "
                    "it tells of could not be noticed; ask the object for that, or keep it as an attribute"
                )

    def _fold(self, variable: Any, args: Sequence[Any], kwargs: Mapping[str, Any], answer: Any) -> None:
        """Note the call of a function by which Dynamo made a constant of constants; refuse it if users'."""
        chosen = _is_of_enum(answer, enum.Enum) and any(map(_is_of_enum, (variable, *args)))
        if chosen:
            answer = answer.realize()  # the guards of a member do not say that this one is chosen
        elif answer.source is not None or _asks_constants(variable, args, kwargs):
            return  # a guard compares it, or the code says it all
        skipped = isinstance(variable, SkipFunctionVariable)  # which no trace enters
        result = (vars(answer.unwrap()).get("value"),) if skipped else constants(answer)
        if result is None or (not skipped and result == (None,)) or not (called := constants(variable)):
            return
        given, function = constants(*args, *kwargs.values()), called[0]
        if given is None or (isinstance(function, type) and not issubclass(function, enum.Enum)):
            return  # what a class makes holds its arguments, and answers nothing
        if function in _WRITING:
            return  # which the frame does later, and nobody may do now
        positional, named = given[: len(args)], dict(zip(kwargs, given[len(args) :], strict=True))
        own = getattr(function, "__self__", None)
        code = function.__qualname__ if is_users_function(function) else ""
        if not code and not all(map(_is_plain, (*given, own))):
            code = _code_run_by(function, positional, named)
        if code:
            self._refuse(
                f"{code} is called while the function is traced, and is not traced itself, so what it "
                "depends on could not be noticed; call it by its name, or keep its result as an attribute"
            )
        elif not _is_pure(function, own) or (chosen and isinstance(own, ModuleType)):
            self._note_call(function, positional, result[0], named)


class EnvironmentHooks:
    """Steps in for reads of environment variables, where Dynamo traces nothing."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations

    @steps_in("os:environ.__class__", "__getitem__")
    def _read_variable(self, original: Any, environ: Any, name: str) -> Any:
        value = None
        try:
            value = original(environ, name)
        finally:
            if environ is os.environ and _reads_environment(sys._getframe(2)):
                self._evaluations.note_call(os.getenv, (name,), value)
        return value


def _is_warning(layer: FunctionType) -> bool:
    """True for what ``typing_extensions.deprecated`` puts around functions of torch's."""
    return layer.__globals__.get("__name__") == "typing_extensions"


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _reads_environment(frame: FrameType) -> bool:
    """True if running code of the user's, not the import of a module, reads the environment."""
    asking = next((one for one in callers(frame) if _module_of(one) not in ("os", "collections.abc")), None)
    name = "" if asking is None else _module_of(asking)
    if is_pinned_module(name) or package_of(name) in _OWN:
        return False
    body = next((one for one in callers(asking) if one.f_code.co_name == "<module>"), None)
    return body is None or body.f_back is None or "importlib" not in body.f_back.f_code.co_filename


def _is_asked(frame: FrameType) -> bool:
    """True if traced or user code calls: the first frame that is not `torch.distributed`."""
    outside = (one for one in callers(frame) if not one.f_code.co_filename.startswith(_DISTRIBUTED))
    asking = next(outside, None)
    if asking is None or package_of(_module_of(asking)) in _OWN:
        return False
    file = asking.f_code.co_filename
    return file.startswith(EVALUATING) or not file.startswith(_INTERNAL)


def constants(*variables: Any) -> tuple[Any, ...] | None:
    """The values of variables; None where one is no constant, or Dynamo has not looked at one."""
    if not all(map(_is_known, variables)):
        return None
    try:
        return tuple(variable.as_python_constant() for variable in variables)
    except Exception:  # noqa: BLE001 - Dynamo raises errors of several kinds, and runs the user's code
        return None


def _asks_constants(variable: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a pure function of Python's that is given no objects: its answer follows from the code.

    Told without their values: a list made anew for each of its members takes the square of their number.
    """
    if not all(map(_holds_constants, (*args, *kwargs.values()))):
        return False
    if isinstance(variable, BUILTIN):
        return _is_pure(variable.as_python_constant(), None)
    method, holder = method_of(variable)
    is_method = bool(method) and _holds_constants(holder)
    return is_method and _is_pure(getattr(kind_of(holder), method, None), None)


def _holds_constants(variable: Any) -> bool:
    """True for a constant of Python's, or a list, tuple, dict or set of nothing else."""
    variable = variable.unwrap()
    if type(variable) is ConstantVariable:
        return True
    items = vars(variable).get("items")
    is_plain = kind_of(variable) in (list, tuple, dict, set, frozenset)
    if not is_plain or not isinstance(items, list | tuple | dict):
        return False
    kinds = {*map(type, values(items)), *(map(type, items.values()) if isinstance(items, dict) else ())}
    return kinds <= {ConstantVariable}


def _is_no_member(group: Any) -> bool:
    """True for what `dist.new_group` gives to ranks outside the group: an integer, maybe a symbol."""
    outside, found = dist.distributed_c10d.GroupMember.NON_GROUP_MEMBER, group.realize()
    if isinstance(found, SymNodeVariable):
        return bool(found.evaluate_expr() == outside)
    return bool(found.is_constant_match(outside))


def _is_known(variable: Any) -> bool:
    """True if nothing within a variable is still lazy, or a symbol, which a slice of it would settle."""
    if not getattr(variable, "is_realized", lambda: True)() or isinstance(variable.unwrap(), SymNodeVariable):
        return False
    items = vars(variable.unwrap()).get("items", ())
    members = (*items.keys(), *items.values()) if isinstance(items, dict) else items
    return not isinstance(items, dict | list | tuple | set) or all(
        _is_known(vars(member).get("vt", member)) for member in members
    )


def _is_of_enum(variable: Any, *kinds: type) -> bool:
    """True if a variable stands for a member, or the class, of an enum of the user's."""
    is_lazy = not getattr(variable, "is_realized", lambda: True)()
    value = variable.peek_value() if is_lazy else vars(variable.unwrap()).get("value")
    is_one = isinstance(value, kinds or (enum.Enum, enum.EnumType))
    return is_one and not is_pinned_module((value if isinstance(value, type) else type(value)).__module__)


def _is_pure(function: Any, own: Any) -> bool:
    owner = getattr(function, "__objclass__", None) or (None if isinstance(own, ModuleType) else own)
    if isinstance(own, enum.Enum):  # whose methods of C's are those of the text or number that it is
        owner = next(base for base in type(own).__mro__ if function.__name__ in vars(base))
    if owner is not None:
        return (owner if isinstance(owner, type) else type(owner)).__module__ in _PURE
    return str(getattr(function, "__module__", type(function).__module__)) in _PURE


def _is_plain(value: Any) -> bool:
    """True if no user code can answer for a value."""
    if isinstance(value, list | tuple | set | frozenset | dict) and is_pinned_module(type(value).__module__):
        return all(map(_is_plain, (*value, *value.values()) if isinstance(value, dict) else value))
    if isinstance(value, functools.partial):
        return all(map(_is_plain, (value.func, *value.args, *value.keywords.values())))
    return is_pinned_module((value if isinstance(value, type | FunctionType) else type(value)).__module__)


def profile_again(profile: Any) -> None:
    """Go on with what `sys.getprofile` gave; cProfile's with Python 3.11 is no function, and is enabled."""
    is_function = profile is None or callable(profile)
    sys.setprofile(profile if is_function else None)
    if not is_function:
        profile.enable()


def _code_run_by(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The name of the first user function that a call runs; empty if it runs none."""
    found: list[str] = []

    def seen(frame: FrameType, event: str, _argument: Any) -> None:
        name = _module_of(frame)
        if event == "call" and not is_pinned_module(name) and not name.startswith(("namedtuple_", __name__)):
            found.append(frame.f_code.co_qualname)

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # it runs code that has nothing to do with the call
    sys.setprofile(seen)
    try:
        with contextlib.suppress(Exception):  # of the user's own code
            function(*args, **kwargs)
    finally:
        profile_again(before)
        if collects:
            gc.enable()
    return next(iter(found), "")
