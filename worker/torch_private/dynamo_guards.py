"""The guards of one trace as plain values: Dynamo's own, and its guard tree in C++.

Relied on, besides what `MADE` says: ``CheckFunctionManager`` builds the tree in one call of
``build_guards``, and runs the guards unless ``output_graph.skip_guards_check``; a builder gives the same
manager for the same place of the tree. Only managers of dicts have checks of their own: type, length, and
so, with the keys that have managers, the keys' order; all others fail where there is nothing at their
place. A dynamic dimension is a ``SymInt`` in ``input_source_to_sizes_strides``; a specialised one has a
``node.maybe_as_int()``, which ``TENSOR_MATCH`` compares and the shape guards leave out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch._dynamo.guards import CheckFunctionManager, make_guard_filter_entry
from torch._dynamo.source import CodeSource, TypeSource, is_from_skip_guard_source

from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.values import Value

_IDENTITY = ("ID_MATCH", "TYPE_MATCH")  # the latter where a type's own source is asked for its base
_VALUES = ("EQUALS_MATCH", "FLOAT_IS_NAN", "COMPLEX_IS_NAN", "TRUE_MATCH", "FALSE_MATCH", "NONE_MATCH")
_CONSTANT = (*_VALUES, "ID_MATCH")
_LENGTH = ("LENGTH_CHECK", "DICT_LENGTH", "TYPE_MATCH")
# Leaves of a tensor's guard for the marks that say which dimensions to trace as symbols.
MARKS = ("DIMENSION_DYNAMIC_MARKING_GUARD", "DYNAMIC_INDICES", "NO_HASATTR")
_OF_ITSELF = (
    "TYPE_MATCH", "FAKE_SCRIPT_TYPE_MATCH", "NONE_MATCH", "DICT_VERSION", "DICT_CONTAINS", "SET_CONTAINS",
    "TUPLE_ITERATOR_LEN", "RANGE_ITERATOR_MATCH", "DISPATCH_KEY_SET_MATCH", "GLOBAL_STATE", "DEFAULT_DEVICE",
)  # fmt: skip
_OF_OBJECTS = (
    "ID_MATCH", "NN_MODULE", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "BUILTIN_MATCH",
    "CLOSURE_MATCH",
)  # fmt: skip
_IN_PYTHON = (
    "CONSTANT_SUBCLASS_MATCH", "TENSOR_SUBCLASS_METADATA_MATCH", "DTENSOR_SPEC_MATCH",
    "OPAQUE_OBJ_GUARD_FN_MATCH", "COW_TENSOR_MATCH", "CURRENT_STREAM_MATCH", "COUNT_ITERATOR_MATCH",
    "AUTOGRAD_SAVED_TENSORS_HOOKS", "FUNCTORCH_STACK_MATCH",
)  # fmt: skip
# Kind of a guard -> classes of the leaves that it makes.
MADE: dict[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in _OF_ITSELF},
    **dict.fromkeys(_OF_OBJECTS, _IDENTITY),
    **dict.fromkeys(_IN_PYTHON, ("LAMBDA_GUARD",)),
    **dict.fromkeys(("EQUALS_MATCH", "CONSTANT_MATCH"), _CONSTANT),
    **dict.fromkeys(("NOT_NONE_MATCH", "WEAKREF_ALIVE"), ("NOT_NONE",)),
    **dict.fromkeys(("SEQUENCE_LENGTH", "EMPTY_NN_MODULE_HOOKS_DICT"), _LENGTH),
    **dict.fromkeys(("DICT_NOT_CONTAINS", "NOT_PRESENT_IN_GENERIC_DICT"), ("DICT_CONTAINS",)),
    "BOOL_MATCH": ("TRUE_MATCH", "FALSE_MATCH"),
    "DICT_KEYS_MATCH": (*_LENGTH, "DICT_VERSION"),
    "MAPPING_KEYS_CHECK": ("MAPPING_KEYS_MATCH",),
    "SET_NOT_CONTAINS": ("SET_CONTAINS",),
    "HASATTR": ("NO_HASATTR",),
    "TENSOR_MATCH": ("TENSOR_MATCH", "ID_MATCH", *MARKS),
    "TORCH_FUNCTION_STATE": ("TORCH_FUNCTION_MODE_STACK",),
    "DUAL_LEVEL": ("DUAL_LEVEL_MATCH",),
    "SHAPE_ENV": ("SYMBOLIC_SHAPE_GUARD",),
    "DUPLICATE_INPUT": ("OBJECT_ALIASING",),
}
# Guards that the root asks last, in one function of Python's for all sizes, and one for all same objects.
_ASKED_LAST = ("SHAPE_ENV", "DUPLICATE_INPUT")
KEY = "key of a dict"
_OF_KEYS = ("EQUALS_MATCH", "ID_MATCH")
_GENERIC_DICT = "GetGenericDictGuardAccessor"


class Leaf(Value):
    """One check of the tree."""

    source: str  # expression for the object that it looks at, as Dynamo writes it
    kind: str  # name of its class in C++
    conditions: tuple[str, ...]  # what it checks, for people
    # kind of the guard that accounts for it; `KEY` for a key of a dict all of whose keys count; empty if
    # there is none
    made_by: str


class GuardTree(Value):
    """The tree of one trace."""

    leaves: tuple[Leaf, ...]  # all leaves; one for each condition of those that the root asks last
    dicts: tuple[str, ...]  # expressions for the dicts whose type, length and order of keys count
    looked_up: tuple[str, ...]  # expressions for the objects of which only the presence counts


class _Walk:
    """Visits the managers of a tree, each once, and finds the guard that made each leaf."""

    def __init__(self, guards: list[Any], builder: Any) -> None:
        self.leaves: list[Leaf] = []
        self.dicts: list[str] = []
        self.looked_up: list[str] = []
        self._last: list[str] = []
        self._makers: dict[tuple[int, str], list[str]] = defaultdict(list)
        self._kept: list[Any] = []  # or another manager might get the identity of one that was seen
        for guard in guards:
            kind = guard.create_fn_name()
            if kind in _ASKED_LAST:
                self._last += [kind] * len(guard.code_list or ())
            for manager in _managers(guard, kind, builder):
                self._kept.append(manager)
                for leaf in MADE.get(kind, ()):
                    self._makers[id(manager), leaf].append(kind)

    def visit(self, manager: Any, *, is_key: bool = False) -> None:
        leaves = manager.get_leaf_guards()
        source = manager.get_source()
        for leaf in leaves:
            kind = type(leaf).__name__
            makers = self._makers[id(manager), kind]
            made_by = makers.pop() if makers else KEY if is_key and kind in _OF_KEYS else ""
            said = tuple(part.partition("  #")[0].strip() for part in leaf.verbose_code_parts())
            self.leaves.append(Leaf(source=source, kind=kind, conditions=said, made_by=made_by))
        children = manager.get_child_managers()
        if hasattr(manager, "get_key_value_managers"):
            self.dicts.append(source)
            for key, value in manager.get_key_value_managers().values():
                if key is not None:
                    self.visit(key, is_key=True)
                if value is not None:
                    self.visit(value)
        elif not leaves and not children:
            self.looked_up.append(source)
        for child in children:
            self.visit(child)

    def visit_last(self, root: Any) -> None:
        """Take the conditions that the root asks last one by one."""
        for leaf in root.get_epilogue_lambda_guards():
            for part in leaf.verbose_code_parts():
                made_by = self._last.pop() if self._last else ""
                self.leaves.append(
                    Leaf(source="L", kind=type(leaf).__name__, conditions=(part,), made_by=made_by)
                )


def _managers(guard: Any, kind: str, builder: Any) -> Iterator[Any]:
    """Places of the tree at which a guard has leaves."""
    source, _ = asked_of(guard)
    manager = builder.get_guard_manager_from_source(source)
    if kind == "NOT_PRESENT_IN_GENERIC_DICT":
        pairs = zip(manager.get_accessors(), manager.get_child_managers(), strict=True)
        yield from (child for accessor, child in pairs if type(accessor).__name__ == _GENERIC_DICT)
        return
    yield manager
    if isinstance(source, TypeSource):
        yield builder.get_guard_manager_from_source(source.base)
    if kind == "CLOSURE_MATCH" and isinstance(builder.get(source), FunctionType):
        yield builder.get_guard_manager_from_source(CodeSource(source))
    elif kind == "DUPLICATE_INPUT":
        other = guard.create_fn.keywords["source_b"]
        if not is_from_skip_guard_source(other):  # then Dynamo makes no leaf of it
            yield builder.get_guard_manager_from_source(other)


def asked_of(guard: Any) -> tuple[Any, dict[str, Any]]:
    """The source of the object that a guard asks, and what it asks for.

    In torch 2.11 the source of ``HASATTR`` is the attribute itself, which need not be there.
    """
    details = dict(getattr(guard.create_fn, "keywords", None) or {})
    source = guard.originating_source
    if guard.create_fn_name() == "HASATTR" and "attr" not in details:
        while not hasattr(source, "member") and type(source).__name__ != "CodeSource":
            source = source.base
        return source.base, {"attr": getattr(source, "member", "__code__")}
    return source, details


class TracedGuard(Value):
    """One guard as Dynamo made it."""

    kind: str  # Dynamo's name of the guard (``TENSOR_MATCH`` ...)
    source: str  # Python expression over ``L`` and ``G`` for the guarded object; empty for global state
    value: Any  # the guarded object; None where there is none, as of an absent attribute
    conditions: tuple[str, ...]  # readable conditions that Dynamo derived
    details: Mapping[str, Any]  # keyword arguments of the guard (``attr``, ``key``)
    same_as: str = ""  # for ``DUPLICATE_INPUT``, the other expression
    sizes: tuple[int | None, ...] = ()  # traced sizes of a tensor, None for a dynamic dimension
    strides: tuple[int | None, ...] = ()  # likewise


def traced_guards(output: Any, code: CodeType) -> tuple[tuple[TracedGuard, ...], GuardTree]:
    """Every guard of a capture of ``code``, and the tree that Dynamo makes of them; no guard is ever run."""
    graph = output.output_graph
    built: list[tuple[list[Any], Any]] = []

    class Noted(CheckFunctionManager):
        def build_guards(self, sorted_guards: list[Any], *args: Any, **more: Any) -> Any:
            builder, holder = super().build_guards(sorted_guards, *args, **more)
            built.append((sorted_guards, builder))
            return builder, holder

    graph.skip_guards_check = True
    root = Noted(code, graph).guard_manager.root
    guards, builder = built.pop()  # Dynamo keeps the manager as long as what it guards, and so these not
    walk = _Walk(guards, builder)
    walk.visit(root)
    walk.visit_last(root)
    ordered = (source for source in graph.guard_on_key_order if isinstance(builder.get(source), dict))
    dicts = dict.fromkeys((*walk.dicts, *sorted(map(source_name, ordered))))
    tree = GuardTree(leaves=tuple(walk.leaves), dicts=tuple(dicts), looked_up=tuple(walk.looked_up))
    shapes = {source_name(source): value for source, value in graph.input_source_to_sizes_strides.items()}
    return tuple(_guard(make_guard_filter_entry(guard, builder), shapes) for guard in guards), tree


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
        value=entry.value if entry.has_value else None,
        conditions=tuple(original.code_list or ()),
        details=details,
        same_as=source_name(other) if other is not None else "",
        sizes=_concrete(metadata["size"]) if metadata else (),
        strides=_concrete(metadata["stride"]) if metadata else (),
    )


def _concrete(values: Any) -> tuple[int | None, ...]:
    """Sizes or strides; None only for those that stayed symbols to the end."""
    return tuple(value if isinstance(value, int) else value.node.maybe_as_int() for value in values)
