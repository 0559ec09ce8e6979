"""Translate Dynamo's guards to portable ones, at compile time; refuse the others by name."""

from __future__ import annotations

import ast
import builtins
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.gears.model import carried, encoded
from warmrank.worker.groups import is_group, resolve, role_of
from warmrank.worker.guards.paths import UNNAMED_SCOPE, NodeValues, PathTable, made_globals, volatile_nodes
from warmrank.worker.guards.unguarded import MEMBER_OF_SET, builtins_named, unguarded
from warmrank.worker.keys.code import forget_types, type_name
from warmrank.worker.keys.reachable import operator_digest
from warmrank.worker.keys.sources import collect, patch_sources
from warmrank.worker.runtime import asked, constants
from warmrank.worker.runtime.artifact import Check, PortableGuards, TracedSource
from warmrank.worker.runtime.check import plain_type
from warmrank.worker.runtime.constants import describe, encode_key
from warmrank.worker.runtime.decoding import decode, keys_of
from warmrank.worker.torch_private.dynamo_guards import KEY, GuardTree, TracedGuard
from warmrank.worker.torch_private.evaluated import Evaluated
from warmrank.worker.torch_private.evaluated_calls import IMPORTED
from warmrank.worker.torch_private.lowering import functions_called, nodes_within
from warmrank.worker.torch_private.operators import operators_of, registered_by
from warmrank.worker.torch_private.tracing import Trace

# Read from the process by `warm.ambient` instead, on every load and call.
AMBIENT_KINDS = frozenset(
    {
        "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "GLOBAL_STATE", "TORCH_FUNCTION_STATE", "DEFAULT_DEVICE",
        "AUTOGRAD_SAVED_TENSORS_HOOKS", "FSDP_TRAINING_STATE", "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH",
    }
)  # fmt: skip
# Imports that a warm load must not make; the torch version in the fingerprint pins what they hold.
_PINNED_IMPORTS = ("torch._dynamo", "torch._inductor", "torch.fx.experimental", "torch.utils._sympy", "sympy")
# What a condition on sizes may use beside the objects themselves.
_SHAPE_NAMES = frozenset({"math", "torch", *dir(builtins)})

_Translated = list[tuple[str, Any]]


def translate(
    trace: Trace,
    ambient: dict[str, str],
    roles: tuple[str, ...],
    function: types.FunctionType,
    arguments: Mapping[str, Any],
    classes: Iterable[list[str]],
) -> PortableGuards:
    """The portable guards of a trace of a function with these arguments, by parameter name.

    ``ambient`` is the state of the process that it was made in, ``roles`` those of the process groups that
    its graph uses, ``classes`` those that its frame looks up: module, qualified name and digest.

    Raises:
        NotPortable: a guard, or a leaf of Dynamo's guard tree, has no portable form; the message names it and
            the object that it is about.
    """
    forget_types()  # a class may have been patched, or put back, since its name was computed
    table = PathTable(trace.import_aliases, made_globals(trace.guards, trace.made_globals))
    for fact in trace.evaluated.facts:
        if fact.source.startswith(IMPORTED):
            table.add(fact.source)  # first, for the others may be of its making
    checks: dict[str, Check] = {}
    shapes: list[tuple[str, tuple[int, ...]]] = []
    pinned = (*_pinned_globals(trace), MEMBER_OF_SET)
    groups = frozenset(map(table.add, _groups_in_collectives(trace)))
    named = {resolve(role)[0]: role for role in roles}
    values = NodeValues(table.nodes, function, arguments)

    def add(found: Iterable[Check]) -> None:
        for check in found:
            checks.setdefault(repr(check), check)

    add(builtins_named(table, trace.codes))
    add((table.add(f"{IMPORTED}{of[0]!r}).{of[1]}"), "identity", ["class", *of]) for of in classes)
    for guard in trace.guards:
        if guard.kind == "SHAPE_ENV":
            shapes.extend(_shape(table, condition) for condition in guard.conditions)
        elif guard.kind not in AMBIENT_KINDS and not _pinned(f"{guard.source} {guard.same_as}", pinned):
            add(_checks(table, guard, groups, named))
    facts = (fact for fact in trace.evaluated.facts if not _pinned(fact.source, pinned))
    add(_evaluated(table, fact, values) for fact in facts)
    refuse_unaccounted(trace.tree, pinned)
    add(unguarded(table, trace, values, lambda source: _pinned(source, pinned)))
    return PortableGuards(
        volatile=volatile_nodes(table, trace.writes),
        nodes=tuple(table.nodes),
        checks=tuple(checks.values()),
        shapes=tuple(dict.fromkeys(shapes)),
        ambient=ambient,
        sources=_sources(trace, function),
        asked=_asked(trace, roles),
    )


def _asked(trace: Trace, roles: tuple[str, ...]) -> tuple[asked.Call, ...]:
    """Answers of the process that the graph relies on, and the sizes of the groups that it names."""
    held = (asked.name_of(group) for group in trace.evaluated.group_names.values())
    found = [*asked.from_trace(trace.evaluated.calls), *held, *map(asked.size_of, roles)]
    return tuple({repr(call): call for call in found}.values())


def _groups_in_collectives(trace: Trace) -> list[str]:
    """Process groups whose names serve for nothing but naming the groups of collectives."""
    held = trace.evaluated.group_names.keys() | _names_in_graph(trace)
    return [
        guard.source
        for guard in trace.guards
        if is_group(type(guard.value)) and guard.value.group_name not in held
    ]


def _names_in_graph(trace: Trace) -> set[str]:
    """Names of groups that the graph holds elsewhere than in collectives."""
    from warmrank.worker.torch_private.warm import known_groups

    names = set(known_groups())
    return {
        item
        for node in nodes_within(trace.lowered.graph)
        if "c10d" not in str(node.target)
        for item in (*node.args, *node.kwargs.values())
        if isinstance(item, str) and item in names
    }


def _sources(trace: Trace, function: types.FunctionType) -> tuple[TracedSource, ...]:
    """Digests of the traced code, and of the operators that are not torch's own."""
    call = trace.lowered.captured
    found = operators_of(trace.lowered.graph) | ({} if call is None else operators_of(call.graph_module))
    operators = [
        TracedSource(
            kind="operator", module=registered_by(name), name=name, digest=operator_digest(name, one)
        )
        for name, one in found.items()
    ]
    opaque = () if call is None else functions_called(call.graph_module)
    codes = (*trace.codes, *(called.__code__ for called in opaque))
    guarded = [function, *(guard.value for guard in trace.guards if guard.kind in _COVERING_KINDS)]
    return (*collect(codes, guarded), *operators, *patch_sources())


def _pinned_globals(trace: Trace) -> tuple[str, ...]:
    """Globals of Dynamo's own making, whose content the versions in the fingerprint fix."""
    modules = [
        f"G[{alias!r}]"
        for alias, module in trace.import_aliases.items()
        if module.startswith(_PINNED_IMPORTS)
    ]
    made_by_namedtuple = [
        guard.source
        for guard in trace.guards
        if guard.source.startswith(f"G['{UNNAMED_SCOPE}")
        and isinstance(guard.value, dict)
        and str(guard.value.get("__name__")).startswith("namedtuple_")
    ]
    return (*modules, *made_by_namedtuple)


def _pinned(source: str, names: tuple[str, ...]) -> bool:
    return any(name in source for name in names)


def _evaluated(table: PathTable, fact: Evaluated, values: NodeValues) -> Check:
    try:
        if fact.kind == "order":
            node = table.add(fact.source)
            return node, "order", [*map(encode_key, values[node])]
        if fact.kind == "identity":
            return table.add(fact.source), "identity", describe(fact.detail)
        if fact.kind == "is":
            node, (other, answer) = table.add(fact.source), fact.detail
            return (node, "same", table.add(other)) if answer else (node, "distinct", [table.add(other)])
        detail = list(fact.detail) if isinstance(fact.detail, tuple) else fact.detail
        if fact.kind in ("instance", "subclass"):
            detail[0] = constants.encode(fact.detail[0])
            _refuse_unnamed(fact.detail[0], detail[0])
        elif fact.kind in ("has_key", "no_key"):
            detail = constants.encode(fact.detail)
        return (table.add(fact.source), fact.kind, detail)
    except NotPortable as error:
        msg = (
            f"the function asks {fact.source} for {fact.detail}, which no later process can ask: "
            f"{error.message}. Pass the object as an argument, or keep it as a plain attribute."
        )
        raise NotPortable(msg, what=fact.source) from error


def _refuse_unnamed(classes: tuple[type, ...], encoded: Any) -> None:
    """Refuse classes that no name leads to."""
    try:
        if decode(encoded) == classes:
            return
    except (AttributeError, ImportError):
        pass
    names = ", ".join(cls.__qualname__ for cls in classes)
    msg = f"no name leads to {names}"
    raise NotPortable(msg, what=names)


def _checks(
    table: PathTable, guard: TracedGuard, groups: frozenset[int], named: Mapping[str, str]
) -> list[Check]:
    """The conditions of a guard.

    ``groups`` are nodes of groups whose names count by role alone; ``named`` are names of groups in the
    graph, with their roles: a text that is one counts by both.
    """
    translator = _TRANSLATORS.get(guard.kind)
    if translator is None:
        raise _refusal(guard, "this kind of guard has no portable form")
    try:
        if guard.kind == "DUPLICATE_INPUT":
            return [(table.add(guard.source), "same", table.add(guard.same_as))]
        node = table.add(guard.source)
        parent, _, name = table.nodes[node]
        if parent in groups and name == "group_name" and translator in (_equals, _constant):
            return [(node, "group_name", role_of(guard.value))]
        found = [(node, kind, expected) for kind, expected in translator(guard)]
    except NotPortable as error:
        raise _refusal(guard, error.message) from error
    role = named.get(guard.value) if isinstance(guard.value, str) else None
    return found if role is None else [*found, (node, "group_name", role)]


def _refusal(guard: TracedGuard, why: str) -> NotPortable:
    remedy = "Pass the object as an argument, keep it as a plain attribute, or leave it out of the function."
    msg = (
        f"guard {guard.kind} on {guard.source or 'global state'} cannot be kept across processes: {why}."
        f"{'' if guard.kind == 'TENSOR_MATCH' else ' ' + remedy}"
    )
    return NotPortable(msg, guard=guard.kind, source=guard.source)


def _shape(table: PathTable, condition: str) -> tuple[str, tuple[int, ...]]:
    """A condition on sizes with every object replaced by ``p<node>``."""
    used: list[int] = []

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and _rooted(node):
                index = table.add_tree(node)
                used.append(index)
                return ast.copy_location(ast.Name(id=f"p{index}", ctx=ast.Load()), node)
            return self.generic_visit(node)

    tree = Replace().visit(ast.parse(condition, mode="eval"))
    unknown = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _SHAPE_NAMES
    if any(not name.startswith("p") or not name[1:].isdigit() for name in unknown):
        msg = f"{condition}, a condition on sizes, uses names that only the tracer knows: {sorted(unknown)}"
        raise NotPortable(msg, what=condition)
    return ast.unparse(ast.fix_missing_locations(tree)), tuple(dict.fromkeys(used))


def _rooted(node: ast.AST) -> bool:
    """True if an expression is a chain of attributes, items and conversions that starts at ``L`` or ``G``."""
    start = node
    while isinstance(node, ast.Attribute | ast.Subscript) or _is_conversion(node):
        node = node.args[0] if isinstance(node, ast.Call) else node.value
    return node is not start and isinstance(node, ast.Name) and node.id in ("L", "G")


def _is_conversion(node: ast.AST) -> TypeGuard[ast.Call]:
    """True if an expression is an array of NumPy's as a tensor."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "___from_numpy"


def _type(guard: TracedGuard) -> _Translated:
    if is_group(type(guard.value)):
        return _group(guard)
    return [("type", type_name(plain_type(guard.value)))]


def _identity(guard: TracedGuard) -> _Translated:
    return [("identity", describe(guard.value))]


def _group(guard: TracedGuard) -> _Translated:
    if not is_group(type(guard.value)):
        kind = type(guard.value).__qualname__
        msg = (
            f"a {kind} is compared by its own rules; read what the function needs of it in __init__ (sizes, "
            "coordinates; of a mesh its groups, mesh.get_group(name)) and keep that as attributes"
        )
        raise NotPortable(msg, what=kind)
    return [("group", [role_of(guard.value), guard.value.size()])]


def _equals(guard: TracedGuard) -> _Translated:
    return [("equals", constants.encode(guard.value))]


def _constant(guard: TracedGuard) -> _Translated:
    return _identity(guard) if isinstance(guard.value, types.CodeType) else _equals(guard)


def _refuse_namespace(value: Any) -> None:
    """Refuse the size or the keys of a module's names, among which Dynamo puts its own while it traces."""
    if isinstance(value, dict) and "__builtins__" in value:
        name = value.get("__name__", "a module")
        msg = f"torch.compile adds names to those of {name} while it traces, so their number is not eager's"
        raise NotPortable(msg, what=str(name))


def _length(guard: TracedGuard) -> _Translated:
    _refuse_namespace(guard.value)
    limit = [("maxlen", guard.value.maxlen)] if isinstance(guard.value, deque) else []
    return [("type", type_name(type(guard.value))), ("length", len(guard.value)), *limit]


def _keys(guard: TracedGuard) -> _Translated:
    _refuse_namespace(guard.value)
    return [("keys", [*map(encode_key, keys_of(guard.value))])]


def _tensor(guard: TracedGuard) -> _Translated:
    tensor: torch.Tensor = guard.value
    if not _is_plain_tensor(tensor):
        kind = type(tensor).__qualname__
        msg = f"it is a {kind}; hand over a plain tensor (as_subclass(torch.Tensor), or what it wraps)"
        raise NotPortable(msg, what=kind)
    sizes, strides = list(guard.sizes), list(guard.strides)
    expected = {**constants.tensor_traits(tensor), "sizes": sizes, "strides": strides}
    gears = encoded(carried(tensor))
    return [("tensor", expected), *([("gears", gears)] if gears else [])]


def _with_detail(kind: str, detail: str) -> Callable[[TracedGuard], _Translated]:
    return lambda guard: [(kind, constants.encode(guard.details[detail]))]


def _plain(kind: str) -> Callable[[TracedGuard], _Translated]:
    return lambda _guard: [(kind, None)]


_OF_OBJECTS = ("ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "BUILTIN_MATCH", "CLOSURE_MATCH")
_TRANSLATORS: dict[str, Callable[[TracedGuard], _Translated]] = {
    **dict.fromkeys(("TYPE_MATCH", "FAKE_SCRIPT_TYPE_MATCH"), _type),
    "OPAQUE_OBJ_GUARD_FN_MATCH": _group,
    **dict.fromkeys(_OF_OBJECTS, _identity),
    **dict.fromkeys(("EQUALS_MATCH", "CONSTANT_SUBCLASS_MATCH", "BOOL_MATCH"), _equals),
    "CONSTANT_MATCH": _constant,
    "NONE_MATCH": _plain("none"),
    **dict.fromkeys(("NOT_NONE_MATCH", "WEAKREF_ALIVE"), _plain("not_none")),
    "SEQUENCE_LENGTH": _length,
    "EMPTY_NN_MODULE_HOOKS_DICT": _plain("empty"),
    **dict.fromkeys(("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"), _keys),
    **dict.fromkeys(("DICT_CONTAINS", "SET_CONTAINS"), _with_detail("has_key", "key")),
    **dict.fromkeys(("DICT_NOT_CONTAINS", "SET_NOT_CONTAINS"), _with_detail("no_key", "key")),
    "NOT_PRESENT_IN_GENERIC_DICT": _with_detail("not_in_dict", "attr"),
    "HASATTR": lambda guard: [("has_attr" if guard.details["present"] else "no_attr", guard.details["attr"])],
    "TENSOR_MATCH": _tensor,
    "DUPLICATE_INPUT": lambda _guard: [],
}
# Kinds of guards that become conditions.
TRANSLATED_KINDS = frozenset({"SHAPE_ENV", *_TRANSLATORS})
# Kinds whose conditions hold a digest of the guarded class or function.
_COVERING_KINDS = frozenset(
    kind for kind, translator in _TRANSLATORS.items() if translator in (_type, _identity, _constant)
)


def refuse_unaccounted(tree: GuardTree, pinned: tuple[str, ...]) -> None:
    """Account for each leaf of Dynamo's guard tree.

    Raises:
        NotPortable: nothing stands for a leaf; the message names it and the object that it looks at.
    """
    for leaf in tree.leaves:
        if not (
            _pinned(leaf.source, pinned)
            or leaf.made_by in AMBIENT_KINDS  # read from the process on every load and call
            or leaf.made_by == KEY  # all keys of the dict are a condition, in their order
            or leaf.made_by in TRANSLATED_KINDS
            or leaf.kind == "NO_TENSOR_ALIASING"  # distinct objects have to be distinct
        ):
            msg = (
                f"Dynamo checks {leaf.source} by {leaf.kind} ({'; '.join(leaf.conditions)}), which no "
                "condition can. Pass the object as an argument, keep it as a plain attribute, or leave it "
                "out of the function."
            )
            raise NotPortable(msg, guard=leaf.kind, source=leaf.source)


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    """True if operators take a tensor as they take any other: not so those of a class with rules of its own.

    Subclasses of Parameter with attributes and methods of their own (vLLM's weights) are plain.
    """
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Buffer) or hasattr(tensor, "fake_mode"):
        return True
    return (
        isinstance(tensor, torch.nn.Parameter)
        and kind.__torch_function__ is torch.nn.Parameter.__torch_function__
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )
