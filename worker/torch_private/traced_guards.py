"""The guards of one trace: as Dynamo makes them, and those that it leaves out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from warmrank.worker.torch_private.guard_tree import GuardTree, asked_of, build
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped
from warmrank.worker.values import Value

FACTS = {
    "torch._dynamo.exc": "ObservedKeyError",
    "torch._dynamo.symbolic_convert": "is_stdlib(mod)",
    "torch._dynamo.variables:ConstDictVariable": (
        "getitem_const_raise_exception_if_absent install_dict_contains_guard"
    ),
    "torch._dynamo.output_graph:OutputGraph": "input_source_to_sizes_strides",
    "torch._dynamo.types:GuardFilterEntry": "name has_value value guard_type orig_guard",
    "torch._guards:Guard": "originating_source create_fn code_list user_stack",
}


class TracedGuard(Value):
    """One guard as Dynamo made it.

    Attributes:
        kind: Dynamo's name of the guard (``TENSOR_MATCH`` ...).
        source: Python expression over ``L`` and ``G`` for the guarded object; empty for global state.
        has_value: whether the expression has a value (an absent attribute has none).
        value: the guarded object.
        conditions: readable conditions that Dynamo derived.
        details: keyword arguments of the guard (``attr``, ``key``).
        same_as: for ``DUPLICATE_INPUT``, the other expression.
        sizes: traced sizes of a tensor, None for a dynamic dimension.
        strides: likewise.
        stack: the traced code that made Dynamo add the guard, outermost first: file, line, name, text.
    """

    kind: str
    source: str
    has_value: bool
    value: Any
    conditions: tuple[str, ...]
    details: Mapping[str, Any]
    same_as: str = ""
    sizes: tuple[int | None, ...] = ()
    strides: tuple[int | None, ...] = ()
    stack: tuple[tuple[str, int, str, str], ...] = ()


@contextlib.contextmanager
def omissions_guarded() -> Iterator[None]:
    """Add the guards that Dynamo leaves out.

    * A missing key ends in an exception that is caught: ``os.environ.get``, ``try: d["k"] except KeyError``.
    * Variables of modules of the standard library that its functions read: ``os.getenv`` reads ``environ``.
    """
    from torch._dynamo import symbolic_convert
    from torch._dynamo.exc import ObservedKeyError
    from torch._dynamo.variables import ConstDictVariable

    def wrap_item(original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(variable: Any, tx: Any, key: Any) -> Any:
            try:
                return original(variable, tx, key)
            except ObservedKeyError:
                variable.install_dict_contains_guard(tx, [key])
                raise

        return getitem

    with (
        wrapped(ConstDictVariable, "getitem_const_raise_exception_if_absent", wrap_item),
        wrapped(symbolic_convert, "is_stdlib", lambda _: lambda _module: False),
    ):
        yield


def traced_guards(output: Any, code: CodeType) -> tuple[tuple[TracedGuard, ...], GuardTree]:
    """Every guard of a capture of ``code``, and the tree that Dynamo makes of them; no guard is ever run."""
    entries, tree = build(code, output.output_graph)
    shapes = {
        source_name(source): value
        for source, value in output.output_graph.input_source_to_sizes_strides.items()
    }
    return tuple(_guard(entry, shapes) for entry in entries), tree


def _guard(entry: Any, shapes: Mapping[str, Any]) -> TracedGuard:
    original = entry.orig_guard
    kind, (asked, details) = entry.guard_type, asked_of(original)
    source = source_name(asked) if entry.name else ""
    if kind == "HASATTR":
        of_object = asked is original.originating_source
        details["present"] = hasattr(entry.value, details["attr"]) if of_object else entry.has_value
    other = details.pop("source_b", None)
    details.pop("value", None)
    metadata = shapes.get(source) if kind == "TENSOR_MATCH" else None
    if details.pop("invert", False):  # up to 2.11 no kind of its own
        kind = kind.replace("_CONTAINS", "_NOT_CONTAINS")
    return TracedGuard(
        kind=kind,
        source=source,
        has_value=entry.has_value,
        value=entry.value if entry.has_value else None,
        conditions=tuple(original.code_list or ()),
        details=details,
        same_as=source_name(other) if other is not None else "",
        sizes=_concrete(metadata["size"]) if metadata else (),
        strides=_concrete(metadata["stride"]) if metadata else (),
        stack=tuple(
            (frame.filename, frame.lineno or 0, frame.name, frame.line or "")
            for frame in original.user_stack or ()
        ),
    )


def _concrete(values: Any) -> tuple[int | None, ...]:
    """Sizes or strides; None only for those that stayed symbols to the end."""
    return tuple(value if isinstance(value, int) else value.node.maybe_as_int() for value in values)
