"""Answers that Dynamo takes from code that it does not trace: registries of classes, marked functions.

``ABC.register`` and runtime protocols answer ``isinstance`` from what the process registered; a metaclass of
somebody's own may answer anything, and so may a function that is marked ``assume_constant_result``.

Facts relied upon (``tests/unit/test_evaluated_classes.py``), of torch 2.11 to 2.15: ``isinstance`` and
``issubclass`` pass methods of `BuiltinVariable`; marked functions pass ``invoke_and_store_as_constant``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.torch_private.evaluated_attributes import Note
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.variables.builtin:BuiltinVariable": "call_isinstance call_issubclass",
    "torch._dynamo.variables.functions": "invoke_and_store_as_constant(tx, fn, name, args, kwargs)",
    "torch._dynamo.variables.nn_module": "invoke_and_store_as_constant",
}


class NotedClasses:
    """Tells of classes that were asked by their metaclasses, and of what no condition can cover."""

    def __init__(self, note: Note, refuse: Callable[[str], None]) -> None:
        self._note, self._refuse = note, refuse

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is traced within the context."""
        from torch._dynamo.variables import functions, nn_module
        from torch._dynamo.variables.builtin import BuiltinVariable

        with (
            wrapped(BuiltinVariable, "call_isinstance", self._question("instance", "__instancecheck__")),
            wrapped(BuiltinVariable, "call_issubclass", self._question("subclass", "__subclasscheck__")),
            wrapped(functions, "invoke_and_store_as_constant", self._constant),
            wrapped(nn_module, "invoke_and_store_as_constant", self._constant),
        ):
            yield

    def _question(self, kind: str, hook: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def ask(builtin: Any, tx: Any, left: Any, right: Any) -> Any:
                answer = original(builtin, tx, left, right)
                if right.is_python_constant() and answer.is_python_constant():
                    classes = tuple(_classes(right.as_python_constant()))
                    answered = [cls for cls in classes if self._is_answered(cls, hook)]
                    if answered and left.source is not None:
                        self._note(kind, source_name(left.source), (classes, answer.as_python_constant()))
                return answer

            return ask

        return wrap

    def _is_answered(self, cls: type, hook: str) -> bool:
        """Whether a registry answers for a class; somebody's own answer is refused."""
        answering = getattr(type(cls), hook, None)
        module = getattr(answering, "__module__", None) or getattr(answering, "__objclass__", type).__module__
        if answering is getattr(type, hook) or type(cls).__module__.startswith("torch"):
            return False
        if not is_pinned_module(module):
            self._refuse(
                f"{type(cls).__qualname__}.{hook} answers whether an object is a {cls.__qualname__}, and a "
                "change of the answer could not be noticed; ask for an attribute, or for type(object)"
            )
        return True

    def _constant(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def invoke(tx: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            name = f"{function.__module__}.{function.__qualname__}"
            self._refuse(
                f"{name} is marked assume_constant_result, so a change of what it returns could not be "
                "noticed; take the mark away, or call it outside and keep the result as an attribute"
            )
            return original(tx, function, *args, **kwargs)

        return invoke


def _classes(asked: Any) -> Iterator[type]:
    """The classes in the second argument of ``isinstance``."""
    for item in asked if isinstance(asked, tuple) else getattr(asked, "__args__", None) or (asked,):
        if isinstance(item, tuple):
            yield from _classes(item)
        elif issubclass(type(item), type):
            yield item
