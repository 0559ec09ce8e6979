"""What traced code asks of objects and Dynamo answers without a guard: members, kinds, keys, group names.

* Attributes that were not there, or whose presence alone was asked: Dynamo leaves no guard where a missing
  member ends in an exception that is caught, nor where ``hasattr`` asks a module, a function or a partial,
  nor on what a class has from its metaclass, nor on annotations.
* Kinds: ``ABC.register`` and runtime protocols answer ``isinstance`` from what the process registered; a
  metaclass of somebody's own may answer anything.
* Keys of an object's ``__dict__``.
* Names of process groups that reach somebody's own code, which may use them for anything: a collective's
  group counts by its role; a name that traced code outside torch holds counts literally.

Relied on (``tests/unit/test_evaluated_*.py``, ``test_group_names.py``), of torch 2.11 to 2.15:

* every read of an attribute passes a method of the variable, or of a base class of it, that is called
  ``var_getattr`` (up to 2.13) or ``tp_getattro_impl``, and raises ``ObservedAttributeError`` where Python
  raises ``AttributeError``; every ``hasattr`` passes ``call_obj_hasattr``, which returns a constant;
* ``isinstance`` and ``issubclass`` pass methods of `BuiltinVariable`;
* from 2.12 a ``__dict__`` answers by ``SideEffectsProxyDict``, a mapping with the object's variable in
  ``item`` and what it holds in ``item_dict``; in 2.11 by ``GetAttrVariable.call_method``, where ``name`` is
  ``"__dict__"`` and ``obj`` the object's variable;
* every value that traced code computes passes ``InstructionTranslatorBase.push``, the same object as was
  read.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import Hook

if TYPE_CHECKING:
    from warmrank.worker.torch_private.evaluated import Evaluations

FACTS = {
    "torch._dynamo.exc": "ObservedAttributeError",
    "torch._dynamo.source": "AttrSource",
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase": "push(val) f_code",
    "torch._dynamo.variables": "dicts misc",
    "torch._dynamo.variables.base:VariableTracker": "build(tx, value, source) call_obj_hasattr",
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_isinstance call_issubclass",
    "torch._dynamo.variables.misc:GetAttrVariable": "call_method",
}

_GETTERS = ("var_getattr", "tp_getattro_impl")
_REGISTRIES = ("_parameters", "_buffers", "_modules")  # in the order in which a module asks them
_PROXY = ("__iter__", "__contains__", "__getitem__")
_NOTHING = object()
_TORCH = str(Path(torch.__file__).parent)


def with_subclasses(cls: type[Any]) -> list[type[Any]]:
    """A class and all below it, each once."""
    found: dict[type[Any], None] = {cls: None}
    for one in cls.__subclasses__():
        found.update(dict.fromkeys(with_subclasses(one)))
    return list(found)


def having(variables: Iterable[type[Any]], name: str, step: Callable[..., Any]) -> Iterator[Hook]:
    """A hook for each class of variables that defines a method itself."""
    return (Hook(cls, name, step) for cls in variables if name in vars(cls))


class ReadHooks:
    """Steps in where traced code asks objects."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations
        self._asking: list[tuple[int, str]] = []  # callers that may find it elsewhere after all
        self._names: dict[int, tuple[Any, Any]] = {}  # of groups, by address, kept alive with the variable

    def hooks(self, variables: Iterable[type[Any]]) -> Iterator[Hook]:
        """The functions that are stepped in for."""
        from torch._dynamo.symbolic_convert import InstructionTranslatorBase
        from torch._dynamo.variables import dicts, misc
        from torch._dynamo.variables.builtin import BuiltinVariable

        for name in _GETTERS:
            yield from having(variables, name, self._get)
        yield from having(variables, "call_obj_hasattr", self._has)
        yield Hook(BuiltinVariable, "call_isinstance", self._is_instance)
        yield Hook(BuiltinVariable, "call_issubclass", self._is_subclass)
        yield Hook(InstructionTranslatorBase, "push", self._push)
        if proxy := getattr(dicts, "SideEffectsProxyDict", None):
            yield from (Hook(proxy, name, self._dict) for name in _PROXY)
        else:
            yield Hook(misc.GetAttrVariable, "call_method", self._dict_method)

    # Attributes.

    def _get(self, original: Any, variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or (id(variable), name) in self._asking:
            return original(variable, tx, name, *args, **kwargs)
        with self._asked(variable, name):
            answer = self._found(original, variable, tx, name)
            self._note_found_elsewhere(tx, variable, name)
            answer = _guarded(tx, variable, name, answer)
        if name == "group_name" and (group := _real_group(variable)) is not None:
            self._names[id(answer)] = (answer, group)
        if is_number_of_device(variable, name):
            self._evaluations.refuse(
                "index of a tensor's device differs from rank to rank; use the device as it is, or keep the "
                "number as an attribute"
            )
        return answer

    def _has(self, original: Any, variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or (id(variable), name) in self._asking:
            return original(variable, tx, name, *args, **kwargs)
        with self._asked(variable, name):
            answer = self._found(original, variable, tx, name)
        if answer.is_python_constant():
            self._note_unless_written(tx, variable, name, present=bool(answer.as_python_constant()))
        return answer

    @contextlib.contextmanager
    def _asked(self, variable: Any, name: str) -> Iterator[None]:
        self._asking.append((id(variable), name))
        try:
            yield
        finally:
            self._asking.pop()

    def _found(self, original: Any, variable: Any, tx: Any, name: str) -> Any:
        from torch._dynamo.exc import ObservedAttributeError

        try:
            return original(variable, tx, name)
        except ObservedAttributeError:
            self._note_unless_written(tx, variable, name, present=False)
            raise

    def _note_unless_written(self, tx: Any, variable: Any, name: str, *, present: bool) -> None:
        """Note the answer of an object that was there before the call, and that the call did not write to."""
        if variable.source is None or tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
            return
        source = source_name(variable.source)
        if not present and _is_there(tx, source, name):
            return  # Dynamo's own mistake (`__func__` of a method, in 2.15), the same in every process
        self._evaluations.note("has_attr" if present else "no_attr", source, name)

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
        self._evaluations.note("not_in_dict", source, name)
        for registry in _REGISTRIES if isinstance(value, torch.nn.Module) else ():
            if name in own.get(registry, ()):
                break
            self._evaluations.note("no_key", f"{source}.{registry}", name)

    # Kinds.

    def _is_instance(self, original: Any, builtin: Any, tx: Any, left: Any, right: Any) -> Any:
        return self._note_kind("instance", left, right, original(builtin, tx, left, right))

    def _is_subclass(self, original: Any, builtin: Any, tx: Any, left: Any, right: Any) -> Any:
        return self._note_kind("subclass", left, right, original(builtin, tx, left, right))

    def _note_kind(self, kind: str, left: Any, right: Any, answer: Any) -> Any:
        if right.is_python_constant() and answer.is_python_constant():
            classes = tuple(_classes(right.as_python_constant()))
            answered = [cls for cls in classes if self._is_answered(cls, f"__{kind}check__")]
            if answered and left.source is not None:
                detail = classes, answer.as_python_constant()
                self._evaluations.note(kind, source_name(left.source), detail)
        return answer

    def _is_answered(self, cls: type, hook: str) -> bool:
        """Whether a registry answers for a class; somebody's own answer is refused."""
        answering = getattr(type(cls), hook, None)
        module = getattr(answering, "__module__", None) or getattr(answering, "__objclass__", type).__module__
        if answering is getattr(type, hook) or type(cls).__module__.startswith("torch"):
            return False
        if not is_pinned_module(module):
            self._evaluations.refuse(
                f"{type(cls).__qualname__}.{hook} answers whether an object is a {cls.__qualname__}, and a "
                "change of the answer could not be noticed; ask for an attribute, or for type(object)"
            )
        return True

    # Keys of ``__dict__``.

    def _dict(self, original: Any, proxy: Any, *key: Any) -> Any:
        self._note_keys(proxy.item, proxy.item_dict, *map(proxy._maybe_unwrap_key, key))
        return original(proxy, *key)

    def _dict_method(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if variable.name == "__dict__" and hasattr(variable.obj, "value"):
            asked = [args[0].as_python_constant()] if args and args[0].is_python_constant() else []
            self._note_keys(variable.obj, vars(variable.obj.value), *asked)
        return original(variable, tx, name, args, kwargs)

    def _note_keys(self, variable: Any, holds: Iterable[str], *keys: str) -> None:
        """Note what a dict holds, or, of the keys that were asked for, which it holds."""
        if variable.source is None:
            return
        source = f"{source_name(variable.source)}.__dict__"
        if not keys:
            self._evaluations.note("keys", source, tuple(holds))
        for key in keys:
            self._evaluations.note("has_key" if key in holds else "no_key", source, key)

    # Names of groups.

    def _push(self, original: Any, translator: Any, variable: Any) -> None:
        if id(variable) in self._names and not translator.f_code.co_filename.startswith(_TORCH):
            group = self._names[id(variable)][1]
            self._evaluations.group_names[str(group.group_name)] = group
        original(translator, variable)


def is_number_of_device(variable: Any, name: str) -> bool:
    """Whether code reads the number of the device that a tensor is on, of which every rank has its own."""
    device = vars(variable).get("value")
    is_of_tensor = isinstance(device, torch.device) and variable.source is None
    return name == "index" and is_of_tensor and device.index is not None


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


def _classes(asked: Any) -> Iterator[type]:
    """The classes in the second argument of ``isinstance``."""
    for item in asked if isinstance(asked, tuple) else getattr(asked, "__args__", None) or (asked,):
        if isinstance(item, tuple):
            yield from _classes(item)
        elif issubclass(type(item), type):
            yield item


def _real_group(variable: Any) -> Any:
    """The process group that a variable stands for; None if it is another object."""
    import torch.distributed as dist

    value = getattr(variable, "value", None)
    value = getattr(value, "real_obj", value)  # of a group that Dynamo takes for an opaque object
    return value if dist.is_available() and isinstance(value, dist.ProcessGroup) else None


def _has_a_getter() -> bool:
    from torch._dynamo.variables.base import VariableTracker

    return any(name in vars(VariableTracker) for name in _GETTERS)


def _read_through_a_proxy() -> bool:
    from torch._dynamo.variables import dicts

    proxy = getattr(dicts, "SideEffectsProxyDict", None)
    return proxy is None or all(hasattr(proxy, name) for name in (*_PROXY, "_maybe_unwrap_key"))


PROBES = {
    f"attributes are read by {' or '.join(_GETTERS)}": _has_a_getter,
    "a SideEffectsProxyDict reads keys by its own methods": _read_through_a_proxy,
}
