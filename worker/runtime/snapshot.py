"""Proof that all conditions still hold: nothing that they were found to hold for has changed since.

A full check evaluates every condition, which takes milliseconds. Beside it, a `Snapshot` notes what each of
them hangs on, in one of four ways, the first that goes:

1. *words*: versions of the dicts and classes on its path, and pointers to what is on it
   (`worker.torch_private.unchanged`), thousands in microseconds;
2. *metadata* of tensors, in C++ (`worker.torch_private.warm`);
3. *predicates*: members of lists and sets, attributes that no dict holds, in well under a microsecond each;
4. *asked*: the condition itself is evaluated on every call (`worker.runtime.per_call`).

Invariants: a condition of an unknown kind, or on a path with an unknown step, is asked, so that nothing is
left out. What changes again and again without a condition failing (a counter beside what is read) goes one
way down each time, until it is asked. Words are read before the full check evaluates anything, so a change in
between shows on the next call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import forget_types, function_digest, layers, patches, type_name
from warmrank.worker.runtime import asked, depends
from warmrank.worker.runtime.artifact import Check, PortableGuards, TracedSource
from warmrank.worker.runtime.check import MISSING, node_values, take_step
from warmrank.worker.runtime.per_call import nodes_of, per_call_nodes, with_parents
from warmrank.worker.runtime.sources import changed, holder_of, of_users
from warmrank.worker.torch_private.unchanged import Key, Watched, dicts_tell
from warmrank.worker.torch_private.warm import Metadata

Predicate = Callable[[], bool]
_MAX_CHANGES = 2


class Snapshot:
    """State that the conditions of a call hang on, noted before a full check says whether they hold.

    ``noise`` counts what changed without a condition failing: what did so often is not watched.

    Attributes:
        asked: nodes whose conditions are to be evaluated on every call.
        others: see `worker.runtime.per_call.compile_input_check`.
    """

    __slots__ = ("_held", "_metadata", "_nodes", "_predicates", "_tensors", "_watched", "asked", "others")

    def __init__(
        self,
        guards: PortableGuards,
        function: FunctionType,
        arguments: Mapping[str, Any],
        *,
        noise: Counter[Key],
    ) -> None:
        collected = _Collector(guards, function, arguments, noise)
        collected.paths()
        collected.checks()
        collected.sources()
        self.asked = frozenset(collected.asked)
        self.others = collected.others
        self._held = collected.held
        self._watched = Watched(collected.watches.values())
        self._predicates = tuple(collected.predicates.items())
        self._nodes, self._tensors = tuple(collected.tensors), tuple(collected.tensors.values())
        self._metadata = Metadata(self._tensors)

    def holds(self) -> bool:
        """True if nothing changed; some microseconds."""
        if not self._watched.same() or (self._tensors and not self._metadata.of(self._tensors)):
            return False
        return all(predicate() for _, predicate in self._predicates)

    def leave(self, elsewhere: Collection[int]) -> None:
        """Leave tensors of these ids to somebody else, who compares their metadata on every call."""
        pairs = zip(self._nodes, self._tensors, strict=True)
        left = {node: item for node, item in pairs if id(item) not in elsewhere}
        self._nodes, self._tensors = tuple(left), tuple(left.values())
        self._metadata = Metadata(self._tensors)

    def changed(self) -> list[Key]:
        """Keys of the changes."""
        return [
            *self._watched.changed(),
            *(("tensor", self._nodes[position]) for position in self._metadata.changed(self._tensors)),
            *(key for key, predicate in self._predicates if not predicate()),
        ]


class _Collector:
    def __init__(
        self,
        guards: PortableGuards,
        function: FunctionType,
        arguments: Mapping[str, Any],
        noise: Counter[Key],
    ) -> None:
        self._guards = guards
        self._function = function
        self._values = node_values(guards.nodes, function, arguments)
        self._of_call = per_call_nodes(guards, function)
        self._noise = noise
        self._unwatched: set[int] = set()
        self._classes: set[type] = set()
        self._bases: dict[type, depends.Watches] = {}
        self.watches: dict[Key, tuple[str, Any]] = {}
        self.predicates: dict[Key, Predicate] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.asked: set[int] = set()
        self.others: dict[int, frozenset[int]] = {}
        self.held: list[Any] = []  # by whose ids they are told apart, so none may go to another object

    def paths(self) -> None:
        """All nodes on a way to what is settled: what each hangs on, given the one before it.

        None of these is an argument's.
        """
        settled = {node for check in self._guards.checks for node in nodes_of(check)}
        settled |= {node for _, nodes in self._guards.shapes for node in nodes}
        for index in with_parents(self._guards.nodes, settled - self._of_call):
            parent, step, argument = self._guards.nodes[index]
            if self._values[index] is not MISSING and (
                parent in self._unwatched or not self._step(index, parent, step, argument)
            ):
                self._unwatched.add(index)
        self.asked |= self._unwatched

    def _step(self, index: int, parent: int, step: str, argument: Any) -> bool:
        value = self._values[index]
        if parent < 0:
            watches = depends.of_root(step, argument, self._function)
            if self._use(watches):
                return True
            globals_ = self._function.__globals__
            return step == "global" and self._same(index, lambda: globals_.get(argument, MISSING) is value)
        base = self._values[parent]
        if isinstance(base, torch.Tensor):
            return argument in depends.OF_METADATA and self._tensor(parent, base)
        if self._use(depends.of_step(step, base, argument, value)):
            return True
        # Not a call's: of a weak reference, whose object must not be held.
        return step != "call" and self._same(index, lambda: take_step(step, base, argument) is value)

    def _same(self, index: int, predicate: Predicate) -> bool:
        """Use a predicate that a node still is the same object, unless it fails at once, or often."""
        key = ("node", index)
        if self._noise[key] >= _MAX_CHANGES or not _safe(predicate)():
            return False
        self._predicate(key, predicate)
        return True

    def _predicate(self, key: Key, predicate: Predicate) -> None:
        self.predicates[key] = _safe(predicate)

    def _use(self, watches: depends.Watches) -> bool:
        """Watch all of these; not if that cannot be, or one of them changes too often."""
        if (watches := _seen(watches)) is None or (
            self._noise and any(self._noise[kind, id(value)] >= _MAX_CHANGES for kind, value in watches)
        ):
            return False
        for kind, value in watches:
            key = kind, id(value)
            if kind == depends.MEMBERS:
                members = list(value)
                self.held.append(members)
                self._predicate(key, functools.partial(_has_members, value, [*map(id, members)]))
            else:
                self.watches[key] = kind, value
        return True

    def checks(self) -> None:
        """All conditions: what each hangs on, given its node's value."""
        per_call = self._of_call | self._unwatched
        for check in self._guards.checks:
            node, kind, _ = check
            if kind in ("type", "tensor") and self._values[node] is not MISSING:
                self._class(type(self._values[node]))  # of arguments too: calls compare names, once computed
            if kind not in ("same", "distinct") and node not in per_call and not self._check(check):
                self.asked.add(node)

        for position, check in enumerate(self._guards.checks):
            if check[1] == "distinct":
                settled = set(nodes_of(check)) - self._of_call - self.asked
                self.others[position] = frozenset(id(self._values[index]) for index in settled)

    def _check(self, check: Check) -> bool:
        node, kind, expected = check
        value = self._values[node]
        if kind == "tensor":
            return isinstance(value, torch.Tensor) and self._tensor(node, value)
        if kind == "type":
            return self._use([("type", value)])
        return self._use(depends.of_check(kind, value, expected))

    def _class(self, cls: type) -> None:
        if cls in self._classes:
            return
        self._classes.add(cls)
        if not self._use(depends.of_class(cls, self._bases)):
            forget_types()
            known = type_name(cls)

            def unchanged() -> bool:
                forget_types()
                return type_name(cls) == known

            self._predicate(("type name", id(cls)), unchanged)

    def _tensor(self, node: int, tensor: torch.Tensor) -> bool:
        if self._noise["tensor", node] >= _MAX_CHANGES:
            return False
        self.tensors[node] = tensor
        return True

    def sources(self) -> None:
        """The traced functions, where their names lead now, and this process's ranks."""
        self._code(self._function)
        for source in self._guards.sources:
            if source.kind == "code":
                self._source(source)
            elif source.kind != "file" and not self._use(_watches(source)):
                # A file's text changes nothing in a process that has read it.
                self._predicate(("source", id(source)), functools.partial(_is_as_traced, source))
            elif source.kind == "operator":
                from warmrank.worker.torch_private.operators import registered

                self._predicate(("operator", id(source)), registered(source.name))
        if calls := self._guards.asked:
            self._predicate(("asked", 0), asked.watch(calls))

    def _source(self, source: TracedSource) -> None:
        value: Any = sys.modules.get(source.module)
        for part in source.name.partition(".<locals>.")[0].split("."):
            holder, value = value, inspect.getattr_static(value, part, MISSING)
            self._binding(holder, part, value)
        self.held.append(value)
        for layer in layers(value):
            if isinstance(layer, FunctionType):
                self._code(layer)
                self._use([("namespace", layer), ("dict", layer.__dict__)])  # may get a ``__wrapped__``

    def _binding(self, holder: Any, part: str, value: Any) -> None:
        """Watch that a name of a module or class means the same."""
        key = (f"name {part}", id(holder))
        if isinstance(holder, ModuleType):
            names = holder.__dict__
            if not self._use([("dict", names)]):
                self._predicate(key, lambda: names.get(part, MISSING) is value)
        elif not (isinstance(holder, type) and self._use([("class", holder)])):
            self._predicate(key, lambda: inspect.getattr_static(holder, part, MISSING) is value)

    def _code(self, function: FunctionType) -> None:
        watches = depends.of_function(function)
        if not self._use(watches):
            known = function_digest(function)
            self._predicate(("function", id(function)), lambda: function_digest(function) == known)


class Unchanged:
    """Says whether a digest of functions is what it was; quickly, while nothing that they reach changes."""

    __slots__ = ("_digest", "_functions", "_known", "_looks", "_members", "_watched")

    def __init__(self, digest: Callable[[], Any], functions: Sequence[Any]) -> None:
        self._digest, self._functions = digest, functions
        self._known = digest()
        self._looks = 0
        self._watched: Watched | None = None
        self._members: list[tuple[Any, list[Any]]] = []

    def holds(self) -> bool:
        """True if it is."""
        is_watched = self._watched is not None and self._watched.same()
        if is_watched and all(_has_members(held, [*map(id, known)]) for held, known in self._members):
            return True
        self._watched = None
        if self._looks <= _MAX_CHANGES:  # else something changes on every call
            self._looks += 1
            self._watched = self._watch()  # before the digest: a change in between shows on the next call
        if self._digest() == self._known:
            return True
        self._watched = None
        return False

    def _watch(self) -> Watched | None:
        from warmrank.worker.keys.reachable import reached

        watches = _seen(depends.of_reached(reached(*self._functions)))
        if watches is None:
            self._looks = sys.maxsize
            return None
        self._members = [(value, list(value)) for kind, value in watches if kind == depends.MEMBERS]
        return Watched(watch for watch in watches if watch[0] != depends.MEMBERS)


def _seen(watches: depends.Watches) -> depends.Watches:
    """The watches; None where one of them does not see every change."""
    sees_all = watches is not None and (dicts_tell() or all(kind != "dict" for kind, _ in watches))
    return watches if sees_all else None


def _has_members(container: Any, known: list[int]) -> bool:
    return [*map(id, container)] == known


def _is_as_traced(source: TracedSource) -> bool:
    return not any(changed((source,)))


def _watches(source: TracedSource) -> depends.Watches:
    """Watches of all that a source's digest tells of."""
    if source.kind == "builtins":
        return [("dict", vars(sys.modules[source.module]))]
    if source.kind == "operator":
        from warmrank.worker.keys.reachable import reached_by_operator

        try:
            return depends.of_reached(reached_by_operator(source.name))
        except NotPortable:
            return None
    holder = holder_of(source.module, source.name)
    own: depends.Watches = [("class", holder)] if isinstance(holder, type) else [("dict", vars(holder))]
    if users := of_users(patches(holder)):
        from warmrank.worker.keys.reachable import reached

        own = depends.together((own, depends.of_reached(reached(*users))))
    return own


def _safe(predicate: Predicate) -> Predicate:
    """The predicate; false where it raises, as it may for an object that is gone."""

    def safe() -> bool:
        try:
            return predicate()
        except Exception:  # noqa: BLE001 - code of the user's may raise anything
            return False

    return safe
