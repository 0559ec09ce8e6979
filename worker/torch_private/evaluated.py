"""Facts that Dynamo evaluates to constants without leaving a guard, noted as they are evaluated.

Hooks here and in `evaluated_reads`, `evaluated_calls`, `evaluated_sets` and `evaluated_values` step in where
one passes, look at question and answer, and record a condition (a fact about an object, or a call that is
made again at a load), or a refusal. `PathHooks` gives paths to what Dynamo has none for, or miswrites.
"""

from __future__ import annotations

import contextlib
import enum
import keyword
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.source import (
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    TypeDictSource,
    TypeMROSource,
    TypeSource,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_slot

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module, is_users_function
from warmrank.worker.torch_private.evaluated_calls import CallHooks, EnvironmentHooks, profile_again
from warmrank.worker.torch_private.evaluated_reads import ReadHooks
from warmrank.worker.torch_private.evaluated_sets import TextHooks
from warmrank.worker.torch_private.evaluated_values import ValueHooks
from warmrank.worker.torch_private.operators import may_do_more
from warmrank.worker.torch_private.patching import intercepted, named, steps_in
from warmrank.worker.torch_private.places import leaves
from warmrank.worker.values import Value

# What Dynamo keeps of classes and functions, which may be others since an earlier trace.
_KEPT = (
    "torch._dynamo.variables.functions:_spec_cache.clear",
    "torch._dynamo.variables.object_protocol:_get_cached_slots.cache_clear",
    "torch._dynamo.variables.base:_tp_type.cache_clear",
    "torch._dynamo.variables.base:_compute_slotdefs.cache_clear",
)
_HELD_IN = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")  # members that hold a function


class Evaluated(Value):
    """One fact about an object that the graph relies on."""

    kind: str  # of the condition that it becomes (``has_attr``, ``no_attr``, ``keys``, ...)
    source: str  # Python expression over ``L`` and ``G`` for the object
    detail: Any  # the question or its answer


class AskedCall(Value):
    """A call without effects whose result is part of the graph; ``args``: None where Dynamo knows none."""

    function: Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    result: Any


class Evaluations:
    """Facts that one trace relies on beside its guards; filled while the trace runs."""

    def __init__(self) -> None:
        self.facts: dict[Evaluated, None] = {}  # about objects, in their order
        self.calls: list[AskedCall] = []  # of functions that read the state of the process, in their order
        self.refused: list[str] = []  # constructs that no condition can cover
        self.group_names: dict[str, Any] = {}  # groups whose names code outside torch holds

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced, lowered and compiled within the context."""
        handlers = BuiltinVariable.call_function_handler_cache  # keeps methods, which are others within
        FakeTensorMode.cache_clear()  # of results for which an earlier trace asked fake kernels
        for forget in _KEPT:
            with contextlib.suppress(AttributeError, ImportError):  # each release of torch has some of them
                named(forget)()
        profile = sys.getprofile()
        hooks = (ReadHooks(self), CallHooks(self), ValueHooks(self), PathHooks(self))
        with intercepted(TextHooks(), *hooks, ConstantHooks()):
            handlers.clear()
            try:
                yield
            finally:
                handlers.clear()
                profile_again(profile)

    @contextlib.contextmanager
    def lowering(self) -> Iterator[None]:
        """Note also what operators read of the environment; fake kernels are asked once more."""
        FakeTensorMode.cache_clear()
        with intercepted(EnvironmentHooks(self)):
            yield

    def note(self, kind: str, source: str, detail: Any) -> None:
        """Note a fact about an object."""
        self.facts[Evaluated(kind=kind, source=source, detail=detail)] = None

    def note_call(self, function: Callable[..., Any], args: Any, result: Any, kwargs: Any = None) -> None:
        """Note a call; its arguments are None where Dynamo does not know them."""
        self.calls.append(AskedCall(function=function, args=args, kwargs=kwargs or {}, result=result))

    def refuse(self, why: str) -> None:
        """Refuse the trace at its end: an error in between Dynamo would take for one of its own."""
        self.refused.append(why)


class ConstantHooks:
    """Steps in where torch would call an operator within the trace because all its inputs are constants.

    Collectives and a library's operators may send, write or read what they like: only the graph calls them.
    """

    @steps_in("torch._subclasses.fake_tensor:FakeTensorMode", "_dispatch_impl(func, types, args, kwargs)")
    def _dispatch(self, original: Any, mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not may_do_more(func):
            return original(mode, func, types, args, kwargs)
        fakes = [value for value in leaves((args, kwargs)) if isinstance(value, FakeTensor)]
        mode.invalidate_written_to_constants(func, fakes, args, kwargs)
        with _forgotten(func, fakes):
            return original(mode, func, types, args, kwargs)

    @steps_in(
        "torch.fx.experimental.proxy_tensor", "proxy_call(proxy_mode, func, pre_dispatch, args, kwargs)"
    )
    def _call(self, original: Any, mode: Any, func: Any, before: bool, args: Any, kwargs: Any) -> Any:
        if not may_do_more(func):
            return original(mode, func, before, args, kwargs)
        tensors = [value for value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        proxies = [get_proxy_slot(value, mode.tracer, None) for value in tensors]
        with _forgotten(func, [proxy for proxy in proxies if proxy is not None]):
            return original(mode, func, before, args, kwargs)


@contextlib.contextmanager
def _forgotten(func: Any, holders: list[Any]) -> Iterator[None]:
    """Inputs of an operator, without the constants that they stand for."""
    kept = [(each, each.constant) for each in holders if each.constant is not None]
    for holder, _ in kept:
        holder.constant = None
    try:
        yield
    finally:
        for holder, constant in () if func._schema.is_mutable else kept:
            holder.constant = constant


class PathHooks:
    """Steps in where Dynamo would take a value without a source for a constant."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._note_call, self._refuse = evaluations.note_call, evaluations.refuse
        self._classes: dict[type, Any] = {}  # the user's that the trace came upon, with their sources
        self._untraceable: dict[int, Any] = {}  # objects that have a path, and no variable

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "__call__(value)")
    def _build(self, original: Any, builder: Any, value: Any) -> Any:
        """Note classes; refuse attributes whose names Python reads otherwise in a path (``x y``)."""
        source, kind = builder.source, type(value)
        name = source.member if isinstance(source, AttrSource) else "plain"
        if not name.isidentifier() or keyword.iskeyword(name) or unicodedata.normalize("NFKC", name) != name:
            msg = (
                f"the function reads an attribute called {name!r}, and no condition can name it; give it a "
                "name that Python takes for an identifier, or keep the value in a dict"
            )
            raise NotPortable(msg, what=name)
        if issubclass(kind, type):
            self._classes.setdefault(value, source)
        elif not is_pinned_module(getattr(kind, "__module__", None)):
            self._classes.setdefault(kind, TypeSource(source))
        try:
            return original(builder, value)
        except Unsupported:
            self._untraceable[id(value)] = value
            raise

    @steps_in("torch._dynamo.variables.functions:UserFunctionVariable", "bind_args")
    def _bind(self, original: Any, variable: Any, *call: Any) -> Any:
        """Bind arguments, free variables and default values, these two with their sources.

        A function that Dynamo finds through an instance made in the trace has none, so they would be
        constants; it is found again in a class that the trace came upon.
        """
        function, source = vars(variable).get("fn"), variable.get_source()
        if not is_users_function(function) or not (
            function.__closure__ or function.__defaults__ or function.__kwdefaults__
        ):
            return original(variable, *call)
        if source is None:
            source = self._source_of(function)
        elif getattr(source, "member", "") == "__func__" and getattr(source.base, "member", "") == "__get__":
            source = source.base  # that of a descriptor's ``__get__`` leads to no bound method
        if source is None:
            if function.__closure__:
                self._refuse(
                    f"{function.__qualname__} has variables of an outer function, and no path leads to it "
                    "where it is called; keep it as an attribute of the module, or pass those as arguments"
                )
            return original(variable, *call)
        variable.get_source = lambda: source
        try:
            return original(variable, *call)
        finally:
            del variable.get_source

    @steps_in("torch._dynamo.variables.builder:SourcelessBuilder", "create(tx, value)")
    def _build_without_source(self, original: Any, tx: Any, value: Any) -> Any:
        """A variable for a member of an enum, read from its class, or by a look-up that is made again.

        What Dynamo could not look at under its path (a ``MappingProxyType`` by classes) is refused.
        """
        kind: Any = type(value)
        if id(value) in self._untraceable:
            self._refuse(
                f"{kind.__qualname__} is what Dynamo cannot guard, and then takes for a constant, as an "
                "attribute of a function; keep what it holds in a dict or a list"
            )
        if issubclass(kind, enum.Enum) and not is_pinned_module(kind.__module__):
            source = self._classes.get(kind)
            if kind.__members__.get(value.name) is not value:  # combined flags
                self._note_call(kind, (value.value,), value)
            elif source is None:
                self._note_call(getattr, (kind, value.name), value)
            else:
                return VariableTracker.build(tx, value, AttrSource(source, value.name))
        return original(tx, value)

    def _source_of(self, function: FunctionType) -> Any:
        """A source for a function of a class; None where no class has it."""
        for cls, source in self._classes.items():
            for position, base in enumerate(cls.__mro__):
                for name, value in () if is_pinned_module(base.__module__) else tuple(vars(base).items()):
                    is_held = type(value).__module__ in ("builtins", "functools") and value is not function
                    members = _HELD_IN if is_held and not isinstance(value, FunctionType) else ()
                    member = next((one for one in members if getattr(value, one, None) is function), "")
                    if member or value is function:
                        of_base = GetItemSource(TypeMROSource(source), position) if position else source
                        found = DictGetItemSource(TypeDictSource(of_base), name)
                        return AttrSource(found, member) if member else found
        return None
