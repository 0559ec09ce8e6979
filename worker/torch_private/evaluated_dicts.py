"""What traced code asks the ``__dict__`` of an object for: Dynamo answers, and leaves no guard.

Facts relied upon: from torch 2.12 the answers come from ``SideEffectsProxyDict``, a mapping with the object's
variable in ``item`` and what it holds in ``item_dict``; in 2.11 from ``GetAttrVariable.call_method``, where
``name`` is ``"__dict__"`` and ``obj`` the object's variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from warmrank.worker.torch_private.evaluated_attributes import Note
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.variables": "dicts misc",
    "torch._dynamo.variables.misc:GetAttrVariable": "call_method",
}


@contextlib.contextmanager
def noted_dict_reads(note: Note) -> Iterator[None]:
    """Tell ``note`` of each key that code asked for, and of all keys where it asked for more than one."""
    from torch._dynamo.variables import dicts, misc

    def wrap_all(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(proxy: Any) -> Any:
            _tell(note, proxy.item, proxy.item_dict)
            return original(proxy)

        return read

    def wrap_one(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(proxy: Any, key: Any) -> Any:
            _tell(note, proxy.item, proxy.item_dict, proxy._maybe_unwrap_key(key))
            return original(proxy, key)

        return read

    def wrap_call(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if variable.name == "__dict__" and hasattr(variable.obj, "value"):
                asked = [args[0].as_python_constant()] if args and args[0].is_python_constant() else []
                _tell(note, variable.obj, vars(variable.obj.value), *asked)
            return original(variable, tx, name, args, kwargs)

        return call_method

    proxy = getattr(dicts, "SideEffectsProxyDict", None)
    readers = {"__iter__": wrap_all, "__contains__": wrap_one, "__getitem__": wrap_one} if proxy else {}
    with contextlib.ExitStack() as stack:
        for name, wrap in readers.items():
            stack.enter_context(wrapped(proxy, name, wrap))
        if not proxy:
            stack.enter_context(wrapped(misc.GetAttrVariable, "call_method", wrap_call))
        yield


def _tell(note: Note, variable: Any, holds: Iterable[str], *keys: str) -> None:
    """Note what a dict holds, or, of the keys that were asked for, which it holds."""
    if variable.source is None:
        return
    source = f"{source_name(variable.source)}.__dict__"
    if not keys:
        note("keys", source, tuple(holds))
    for key in keys:
        note("has_key" if key in holds else "no_key", source, key)


def _read_through_a_proxy() -> bool:
    from torch._dynamo.variables import dicts

    proxy = getattr(dicts, "SideEffectsProxyDict", None)
    readers = ("__iter__", "__contains__", "__getitem__", "_maybe_unwrap_key")
    return proxy is None or all(hasattr(proxy, name) for name in readers)


PROBES = {"a SideEffectsProxyDict reads keys by its own methods": _read_through_a_proxy}
