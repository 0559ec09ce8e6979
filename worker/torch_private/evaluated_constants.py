"""Constants whose own code, or whose identity, Dynamo asks for while it traces.

A member of an enum, a class or a tuple is a constant to Dynamo: in ``if member:`` and ``member in members``
it runs methods that the user wrote, and traces none of what they read. Which of equal constants are one
object is an accident of the process.

Facts relied upon (``tests/unit/test_evaluated_constants.py``), of torch 2.11 to 2.15: all values pass
``VariableBuilder`` or ``SourcelessBuilder.create``; ``is`` passes ``compare_op_handlers``; Dynamo itself runs
methods of constants in files of ``_EVALUATING`` only.
"""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import torch

from warmrank.worker.keys.code import globals_module, is_pinned_module
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.symbolic_convert": "compare_op_handlers",
    "torch._dynamo.variables.builder:SourcelessBuilder": "create(tx, value)",
    "torch._dynamo.variables.builder:VariableBuilder": "__call__(value)",
}
_TORCH: Final = str(Path(torch.__file__).parent)
_DYNAMO: Final = Path(_TORCH) / "_dynamo"
_EVALUATING: Final = tuple(str(_DYNAMO / part) for part in ("variables", "symbolic_convert.py", "utils.py"))
_BUILDING: Final = str(_DYNAMO / "variables" / "builder.py")
_PLAIN: Final = (int, float, complex, str, bytes, tuple, frozenset)
_MADE_ONCE: Final = range(-5, 257)
_NOT_ASKED: Final = frozenset(
    {
        "__init__", "__new__", "__init_subclass__", "__set_name__", "__post_init__", "__class_getitem__",
        "__getattr__", "__getattribute__", "__setattr__", "__prepare__", "__call__", "__instancecheck__",
        "__subclasscheck__",
    }
)  # fmt: skip


class NotedConstants:
    """Refuses what depends on methods of constants, or on which of equal constants are one object."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse
        self._seen: set[type] = set()
        self._methods: set[CodeType] = set()  # of constants that the trace came upon

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced within the context."""
        from torch._dynamo import symbolic_convert
        from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder

        handlers: dict[str, Any] = symbolic_convert.compare_op_handlers
        identity = {name: handlers[name] for name in ("is", "is not")}
        before = sys.getprofile()
        with (
            wrapped(VariableBuilder, "__call__", self._built),
            wrapped(SourcelessBuilder, "create", self._built_without_source),
        ):
            handlers.update({name: self._compared(handler) for name, handler in identity.items()})
            try:
                yield
            finally:
                handlers.update(identity)
                sys.setprofile(before)

    def read(self, variable: Any, name: str) -> None:
        """Refuse the number of the device that a tensor is on: every rank has its own."""
        device = vars(variable).get("value")
        if name != "index" or not isinstance(device, torch.device) or variable.source is not None:
            return
        if device.index is not None:
            self._refuse(
                "index of a tensor's device differs from rank to rank; use the device as it is, or keep the "
                "number as an attribute"
            )

    def _built(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def build(builder: Any, value: Any) -> Any:
            self._watch(value)
            return original(builder, value)

        return build

    def _built_without_source(self, original: Any) -> Any:
        def create(tx: Any, value: Any) -> Any:
            self._watch(value)
            return original.__func__(tx, value)

        return staticmethod(create)

    def _watch(self, value: Any) -> None:
        """From the first constant with methods of its own on, look at each call that Python makes."""
        kind = type(value)
        if issubclass(kind, set | frozenset):
            self._refuse_own_equality(value)
        if kind in self._seen:
            return
        self._seen.add(kind)
        if issubclass(kind, (type, enum.Enum, *_PLAIN)) or _is_frozen(kind):
            before = len(self._methods)
            self._methods.update(_methods_of(kind))
            if len(self._methods) > before:
                sys.setprofile(self._called)

    def _refuse_own_equality(self, members: Iterable[Any]) -> None:
        """Refuse a set whose members say themselves which are equal: Dynamo looks for the same objects."""
        for kind in {type(member) for member in members}:
            for method in _methods_of(kind):
                if method.co_name in ("__eq__", "__hash__"):
                    self._refuse(
                        f"{method.co_qualname} decides what is in a set, and is not asked while the function "
                        "is traced; keep a dict by a name, or a list"
                    )

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or frame.f_code not in self._methods:
            return
        caller: FrameType | None = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_TORCH):
            caller = caller.f_back  # a method of Python's, or of the user's, that calls this one
        file = caller.f_code.co_filename if caller is not None else ""
        if file.startswith(_EVALUATING) and file != _BUILDING:
            self._refuse(
                f"{frame.f_code.co_qualname} is called while the function is traced, and is not traced "
                "itself, so what it depends on could not be noticed; call it by its name, or ask before the "
                "call and keep the answer as an attribute"
            )

    def _compared(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare(tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
            answer = original(tx, args, kwargs)
            if not is_pinned_module(tx.f_globals.get("__name__")) and any(arg.source for arg in args):
                one, other = map(_plain_value, args)
                if one and other and one == other:
                    self._refuse(
                        f"`is` between values of type {type(one[0]).__name__} says whether equal ones are "
                        "one object, which differs from process to process; compare them with =="
                    )
            return answer

        return compare


def _methods_of(kind: type) -> Iterator[CodeType]:
    """The special methods of a type that somebody wrote."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            is_special = name.startswith("__") and name.endswith("__") and name not in _NOT_ASKED
            if is_special and isinstance(value, FunctionType) and not is_pinned_module(globals_module(value)):
                made_by_dataclass = value.__code__.co_qualname.startswith("__create_fn__")
                yield from () if made_by_dataclass else (value.__code__,)


def _is_frozen(kind: type) -> bool:
    params = getattr(kind, "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


def _plain_value(variable: Any) -> tuple[Any, ...]:
    """A constant of which Python may hold several equal ones; empty for others."""
    try:
        value = variable.as_python_constant()
    except Exception:  # noqa: BLE001 - Dynamo raises errors of several kinds
        return ()
    if type(value) not in _PLAIN or not value or (type(value) is int and value in _MADE_ONCE):
        return ()
    return (value,)
