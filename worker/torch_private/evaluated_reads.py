"""Reads of objects that leave no guard, noted as they are evaluated; see `evaluated`.

* Attributes that were absent, or asked for presence only. What Dynamo takes for absent and is there
  (attributes of a partial) is traced, or refused.
* Kinds that a registry answers for (``ABC.register``, runtime protocols).
* Keys of an object's ``__dict__``, which a ``SideEffectsProxyDict`` answers with the object's variable in
  ``item`` and its content in ``item_dict``; in 2.11 a variable with ``name`` ``"__dict__"`` and ``obj``.
* Names of process groups: a collective's group counts by its role, a name that traced code outside torch
  holds literally. ``push`` sees the same object as was read.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._dynamo.exc import ObservedAttributeError, handle_observed_exception
from torch._dynamo.source import AttrSource, GetItemSource, TypeMROSource, TypeSource
from torch._dynamo.variables import dicts
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import UserMethodVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import DeletedVariable, GetAttrVariable, SuperVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_found_by_name, is_pinned_module
from warmrank.worker.torch_private.containers import is_own
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import named, steps_in, steps_in_variables

if TYPE_CHECKING:
    from warmrank.worker.torch_private.evaluated import Evaluations

_GETTERS = ("var_getattr", "tp_getattro_impl")
_REGISTRIES = ("_parameters", "_buffers", "_modules")  # in the order in which a module asks them
_BUILTINS = "torch._dynamo.variables.builtin"
_BUILTIN = f"{_BUILTINS}:BuiltinVariable"
_PROXY = "torch._dynamo.variables.dicts:SideEffectsProxyDict"
_HAS_PROXY = hasattr(dicts, "SideEffectsProxyDict")
_MEMBER = "torch._dynamo.variables.misc:GetAttrVariable"
_KEYS = ("__iter__", "__contains__", "__getitem__")
_NOTHING = object()
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_FUNCTIONS = (".functions", ".builtin", ".torch")  # modules of Dynamo's variables for them
_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))  # torch, and what stands for it


class ReadHooks:
    """Steps in where traced code asks objects."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations
        self._asking: list[tuple[int, str]] = []  # callers that may find it elsewhere after all
        self._names: dict[int, tuple[Any, Any]] = {}  # of groups, by address, kept alive with the variable

    # Attributes.

    @steps_in(_BUILTIN, "call_getattr", is_optional=True)  # to torch 2.12
    def _read_named(self, original: Any, builtin: Any, tx: Any, owner: Any, name: Any, *default: Any) -> Any:
        return _read(tx, owner, name, lambda: original(builtin, tx, owner, name, *default))

    @steps_in(f"{_BUILTINS}:GetAttrBuiltinVariable", "_call_getattr", is_optional=True)  # torch 2.13
    def _read_by_args(self, original: Any, builtin: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        return _read(tx, args[0], args[1], lambda: original(builtin, tx, args, kwargs))

    @steps_in("torch._dynamo.symbolic_convert", "generic_getattr", is_optional=True)  # from torch 2.14 on
    @steps_in(_BUILTINS, "generic_getattr", is_optional=True)
    def _read(self, original: Any, tx: Any, owner: Any, name: str, *default: Any) -> Any:
        if owner.is_tensor():
            _refuse_own_property(name)
        return _read(tx, owner, name, lambda: original(tx, owner, name, *default))

    @steps_in_variables(*_GETTERS, is_optional=True)
    def _get(self, original: Any, variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or (id(variable), name) in self._asking:
            return original(variable, tx, name, *args, **kwargs)
        _refuse_written_class(tx, variable, name)
        if isinstance(variable, SuperVariable) and (of_base := _data_of_base(tx, variable, name)) is not None:
            return of_base
        with self._asked(tx, variable, name):
            answer = self._found(original, variable, tx, name)
            self._note_found_elsewhere(tx, variable, name)
            answer = _guarded(tx, variable, name, answer)
        if name == "group_name" and (group := _real_group(variable)) is not None:
            self._names[id(answer)] = (answer, group)
        device = vars(variable).get("value")
        is_of_tensor = isinstance(device, torch.device) and variable.source is None
        if name == "index" and is_of_tensor and device.index is not None:
            self._evaluations.refuse(
                "index of a tensor's device differs from rank to rank; use the device as it is, or keep the "
                "number as an attribute"
            )
        return answer

    @steps_in_variables("call_obj_hasattr")
    def _has(self, original: Any, variable: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or (id(variable), name) in self._asking:
            return original(variable, tx, name, *args, **kwargs)
        _refuse_written_class(tx, variable, name)
        with self._asked(tx, variable, name):
            answer = self._found(original, variable, tx, name)
        if not answer.is_python_constant():
            return answer
        present = bool(answer.as_python_constant())
        if not present and _real(tx, variable, name)[1] is not _NOTHING:
            present, answer = True, type(answer).create(True)
        self._note_unless_written(tx, variable, name, present=present)
        return answer

    @contextlib.contextmanager
    def _asked(self, tx: Any, variable: Any, name: str) -> Iterator[None]:
        """Let no other hook note what is asked within; torch 2.11 loses sight of a method in an object."""
        is_unknown = isinstance(variable, UserMethodVariable) and variable.source is None
        if is_unknown and not is_pinned_module(tx.f_globals.get("__name__")):
            raise _untraced("a method", name)
        self._asking.append((id(variable), name))
        try:
            yield
        finally:
            self._asking.pop()

    def _found(self, original: Any, variable: Any, tx: Any, name: str) -> Any:
        """The answer of Dynamo; or of the object, where Dynamo says it has not what it has (of a partial).

        What an object has from its class is refused then, if the user's code asks.
        """
        try:
            return original(variable, tx, name)
        except ObservedAttributeError:
            owner, value = _real(tx, variable, name)
            of_class = any(name in vars(base) for base in type(owner).__mro__)
            if value is not _NOTHING and name in (_own(owner) or ()) and not of_class:
                made = VariableTracker.build(tx, value, AttrSource(variable.source, name))
                handle_observed_exception(tx)
                return made
            if value is not _NOTHING and not is_pinned_module(tx.f_globals.get("__name__")):
                raise _untraced(type(owner).__qualname__, name) from None
            self._note_unless_written(tx, variable, name, present=False)
            raise

    def _note_unless_written(self, tx: Any, variable: Any, name: str, *, present: bool) -> None:
        """Note the answer of an object from before the call, unless the call wrote to it."""
        source = _source_before_the_call(tx, variable, name)
        if source is None or (not present and _real(tx, variable, name)[1] is not _NOTHING):
            return
        self._evaluations.note("has_attr" if present else "no_attr", source, name)

    def _note_found_elsewhere(self, tx: Any, variable: Any, name: str) -> None:
        """Note that ``__getattr__`` was asked: neither object nor class has the name."""
        value, source = vars(variable).get("value"), _source_before_the_call(tx, variable, name)
        if source is None or isinstance(value, type | ModuleType):
            return
        own = _own(value)
        if own is None or name in own or any(name in vars(base) for base in type(value).__mro__):
            return
        self._evaluations.note("not_in_dict", source, name)
        for registry in _REGISTRIES if isinstance(value, torch.nn.Module) else ():
            if name in own.get(registry, ()):
                break
            self._evaluations.note("no_key", f"{source}.{registry}", name)

    # Kinds.

    @steps_in(_BUILTIN, "call_isinstance", "call_issubclass")
    def _ask_kind(self, original: Any, builtin: Any, tx: Any, left: Any, right: Any) -> Any:
        kind = original.__name__.removeprefix("call_is")
        classes = tuple(_classes(right.as_python_constant())) if right.is_python_constant() else ()
        if kind == "instance" and torch.autograd.Variable in classes:  # as which all tensors pass
            plain = (torch.Tensor if cls is torch.autograd.Variable else cls for cls in classes)
            right = VariableTracker.build(tx, tuple(plain))
        answer = original(builtin, tx, left, right)
        if classes and answer.is_python_constant():
            answered = [cls for cls in classes if self._is_answered(cls, f"__{kind}check__")]
            if answered and left.source is not None:
                detail = classes, answer.as_python_constant()
                self._evaluations.note(kind, source_name(left.source), detail)
        return answer

    def _is_answered(self, cls: type, hook: str) -> bool:
        """True if a registry answers for a class; a user's own answer is refused."""
        answering = getattr(type(cls), hook, None)
        module = getattr(answering, "__module__", None) or getattr(answering, "__objclass__", type).__module__
        if answering is getattr(type, hook):
            return False
        if type(cls).__module__.startswith("torch"):  # Parameter and Buffer are marks of a tensor
            return isinstance(answering, FunctionType)
        if not is_pinned_module(module):
            self._evaluations.refuse(
                f"{type(cls).__qualname__}.{hook} answers whether an object is a {cls.__qualname__}, and a "
                "change of the answer could not be noticed; ask for an attribute, or for type(object)"
            )
        return True

    @steps_in("torch._dynamo.variables.functions", "fn_getattro_impl", is_optional=True)  # of torch 2.14
    def _get_of_function(self, original: Any, tx: Any, function: Any, source: Any, name: str) -> Any:
        guarded = _annotations(tx, function, source) if name == "__annotations__" else None
        return original(tx, function, source, name) if guarded is None else guarded

    @steps_in(
        "torch._dynamo.variables.user_defined:UserDefinedClassVariable",
        "resolve_cls_descriptor(tx, name, cls_attr, source)",
        is_optional=True,  # from torch 2.13 on
    )
    def _get_of_class(self, original: Any, cls: Any, tx: Any, name: str, held: Any, source: Any) -> Any:
        """Trace a descriptor's own ``__get__`` of a class; Dynamo takes the descriptor for the answer."""
        if not is_own(type(held), "__get__") or is_pinned_module(type(held).__module__):
            return original(cls, tx, name, held, source)
        where = None if cls.source is None else cls.get_source_by_walking_mro(tx, name)
        nothing = VariableTracker.build(tx, None)
        return VariableTracker.build(tx, held, where).call_method(tx, "__get__", [nothing, cls], {})

    # Keys of dicts, and of ``__dict__``.

    @steps_in("torch._dynamo.variables.dicts:ConstDictVariable", "install_dict_contains_guard(tx, args)")
    def _look_for_class(self, original: Any, held: Any, tx: Any, args: Any) -> None:
        """Note that a class is no key; Dynamo guards all keys, among which are those of other modules."""
        cls = args[0].as_python_constant() if args[0].is_python_constant() else None
        is_plain = held.source is not None and not tx.output.side_effects.is_modified(held)
        if is_plain and isinstance(cls, type) and is_found_by_name(cls) and args[0] not in held:
            self._evaluations.note("no_key", source_name(held.source), cls)
        else:
            original(held, tx, args)

    @steps_in(_PROXY, *_KEYS, is_optional=True)
    def _dict(self, original: Any, proxy: Any, *key: Any) -> Any:
        self._note_keys(proxy.item, proxy.item_dict, *map(proxy._maybe_unwrap_key, key))
        return original(proxy, *key)

    @steps_in(_MEMBER, "call_method", is_optional=True)
    def _dict_method(self, original: Any, variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not _HAS_PROXY and variable.name == "__dict__" and hasattr(variable.obj, "value"):
            asked = [args[0].as_python_constant()] if args and args[0].is_python_constant() else []
            self._note_keys(variable.obj, vars(variable.obj.value), *asked)
        return original(variable, tx, name, args, kwargs)

    def _note_keys(self, variable: Any, holds: Iterable[str], *keys: str) -> None:
        """Note all keys of a dict, or the presence of those that were asked for."""
        if variable.source is None:
            return
        source = f"{source_name(variable.source)}.__dict__"
        if not keys:
            self._evaluations.note("keys", source, tuple(holds))
        for key in keys:
            self._evaluations.note("has_key" if key in holds else "no_key", source, key)

    # Names of groups.

    @steps_in("torch._dynamo.symbolic_convert:InstructionTranslatorBase", "push(val)")
    def _push(self, original: Any, translator: Any, variable: Any) -> None:
        if id(variable) in self._names and not translator.f_code.co_filename.startswith(_NOT_USERS):
            group = self._names[id(variable)][1]
            self._evaluations.group_names[str(group.group_name)] = group
        original(translator, variable)


def _refuse_written_class(tx: Any, variable: Any, name: str) -> None:
    """Refuse a name of an object, or subclass, that the call wrote to a class: Dynamo reads the old value."""
    value, mutations = vars(variable).get("value"), tx.output.side_effects.store_attr_mutations
    own = mutations.get(variable, {}).get(name)
    if name in (_own(value) or ()) if own is None else not isinstance(own, DeletedVariable):
        return
    bases = (value if isinstance(value, type) else type(value)).__mro__
    for written, names in mutations.items():
        cls = vars(written).get("value")
        if name in names and isinstance(cls, type) and cls in bases and written is not variable:
            kind = cls.__qualname__
            msg = (
                f"the function writes {kind}.{name}, and then reads it of a {bases[0].__qualname__}, where "
                f"no trace finds it; read {kind}.{name}"
            )
            raise NotPortable(msg, what=f"{kind}.{name}")


def _data_of_base(tx: Any, variable: Any, name: str) -> Any:
    """A guarded variable for what ``super()`` reads of a base and is no method; None for methods.

    Dynamo passes over 0, None and the like, takes a property for what it returns, and guards nothing of an
    object that the call made.
    """
    held, start = variable.objvar, variable.typevar.as_python_constant()
    if held is None:
        return None
    kind, source = held.python_type(), getattr(held.mutation_type, "cls_source", None)
    if issubclass(kind, type):
        kind, source = held.as_python_constant(), held.source
    elif held.source is not None:
        source = TypeSource(held.source)
    mro = kind.__mro__
    after = range(mro.index(start) + 1, len(mro)) if start in mro else ()
    position = next((place for place in after if name in vars(mro[place])), None)
    if position is None or is_pinned_module(mro[position].__module__):
        return None
    value, text = vars(mro[position])[name], f"super().{name}"
    if isinstance(value, FunctionType | classmethod | staticmethod):
        return None
    if hasattr(type(value), "__get__") or source is None:
        raise _untraced("super()", name)
    mutations = tx.output.side_effects.store_attr_mutations
    if any(name in names and vars(cls).get("value") in mro for cls, names in mutations.items()):
        raise NotPortable(f"the function writes what {text} reads; read it of the class", what=text)
    return VariableTracker.build(tx, value, AttrSource(GetItemSource(TypeMROSource(source), position), name))


def _guarded(tx: Any, variable: Any, name: str, answer: Any) -> Any:
    """A variable for what Dynamo does not guard: a class's (to 2.11), a metaclass's, annotations."""
    if name == "__annotations__":
        annotations = _annotations(tx, vars(variable).get("fn"), variable.source)
        return answer if annotations is None else annotations
    if isinstance(_value_of(answer), _DESCRIPTORS) and not isinstance(_value_of(variable), type):
        if name == "__class__":  # of a function
            return VariableTracker.build(tx, type).call_function(tx, [variable], {})
        raise _untraced(type(variable).__name__.removesuffix("Variable"), name)  # as ``__builtins__``
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


def _read(tx: Any, owner: Any, name: Any, original: Callable[[], Any]) -> Any:
    """Read an attribute by ``original``, unless Dynamo mistakes it.

    A text, a number or None that a function, method or partial has (``__qualname__``; ``__name__`` in 2.15)
    is read from its code, or taken for its descriptor; others for an object of no type.
    """
    known = name if isinstance(name, str) else name.is_python_constant() and name.as_python_constant()
    if not isinstance(known, str):
        return original()
    is_function = type(owner.realize()).__module__.endswith(_FUNCTIONS)
    if is_function and (plain := _plain_member(tx, owner, known)) is not None:
        return plain
    answer = original()
    return (isinstance(answer, GetAttrVariable) and _plain_member(tx, owner, known)) or answer


def _plain_member(tx: Any, variable: Any, name: str) -> Any:
    """A guarded variable for a member that is a text, a number or None; else None."""
    value = _real(tx, variable, name)[1]
    if value is not None and type(value) not in (str, bool, int, float):
        return None
    return VariableTracker.build(tx, value, AttrSource(variable.source, name))


def _refuse_own_property(name: str) -> None:
    """Refuse a property that somebody gave tensors in place of torch's, which is traced all the same."""
    found = inspect.getattr_static(torch.Tensor, name, None)
    made_in = getattr(found.fget, "__module__", None) if isinstance(found, property) else "torch"
    if not is_pinned_module(made_in) and hasattr(torch._C.TensorBase, name):
        raise _untraced("torch.Tensor", name)


def _value_of(variable: Any) -> Any:
    """Value of a variable, as far as it tells."""
    if isinstance(variable, LazyVariableTracker) and not variable.is_realized():
        return variable.peek_value()
    return vars(variable.realize()).get("value")


def _untraced(kind: str, name: str) -> NotPortable:
    msg = f"{kind}.{name} is not what traced code takes it for: read it before the call, and keep what it is "
    return NotPortable(f"{msg}as an attribute", what=f"{kind}.{name}")


def _annotations(tx: Any, function: Any, source: Any) -> Any:
    """A variable for the annotations of a function; None where they are read by torch or Python.

    These read them often, and for nothing that a graph depends on.
    """
    is_asked_by_torch = is_pinned_module(tx.f_globals.get("__name__"))
    if source is None or is_asked_by_torch or not isinstance(function, FunctionType):
        return None
    return VariableTracker.build(tx, function.__annotations__, AttrSource(source, "__annotations__"))


def _source_before_the_call(tx: Any, variable: Any, name: str) -> str | None:
    """The expression for an object; None if the call made it, or wrote to the attribute."""
    if variable.source is None or tx.output.side_effects.has_pending_mutation_of_attr(variable, name):
        return None
    return source_name(variable.source)


def _real(tx: Any, variable: Any, name: str) -> tuple[Any, Any]:
    """The caller's object itself as before the call, and its attribute; `_NOTHING` for what is not there."""
    source = _source_before_the_call(tx, variable, name)
    try:
        scopes = {"L": tx.output.local_scope, "G": tx.output.global_scope}
        owner = _NOTHING if source is None else eval(source, scopes)  # noqa: S307 - as Dynamo
        return owner, (_NOTHING if owner is _NOTHING else getattr(owner, name, _NOTHING))
    except Exception:  # noqa: BLE001 - no expression, or the user's own code
        return _NOTHING, _NOTHING


def _own(owner: Any) -> Mapping[str, Any] | None:
    """Namespace of an object itself, without its class; None for one without."""
    try:
        held: Mapping[str, Any] = object.__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        return None
    return held


def _classes(asked: Any) -> Iterator[type]:
    """The classes in the second argument of ``isinstance``."""
    if issubclass(type(asked), type):
        yield asked
        return
    for item in asked if isinstance(asked, tuple) else getattr(asked, "__args__", ()):
        yield from _classes(item)


def _real_group(variable: Any) -> Any:
    """The process group that a variable stands for; None for another object."""
    value = getattr(variable, "value", None)
    value = getattr(value, "real_obj", value)  # of a group that Dynamo takes for an opaque object
    return value if dist.is_available() and isinstance(value, dist.ProcessGroup) else None


PROBES = {
    f"attributes are read by {' or '.join(_GETTERS)}": lambda: any(
        name in vars(named("torch._dynamo.variables.base:VariableTracker")) for name in _GETTERS
    ),
    "a __dict__ is read by methods of its own": lambda: (
        all(hasattr(named(_PROXY), name) for name in (*_KEYS, "_maybe_unwrap_key"))
        if _HAS_PROXY
        else "call_method" in vars(named(_MEMBER))
    ),
}
