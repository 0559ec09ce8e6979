"""One loaded artifact, bound to one module: runs its frame; its conditions stand in `call_guards`."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import json
import marshal
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.engines import Site, engine_named
from warmrank.worker.errors import StateChanged
from warmrank.worker.keys.request import code_in_options, functions_in_options
from warmrank.worker.runtime.artifact import MUTATED, NUMBER, Frame, corrupt, readable
from warmrank.worker.runtime.check import argument_names, text
from warmrank.worker.runtime.decoding import decode
from warmrank.worker.runtime.find import StoredArtifact, function_of
from warmrank.worker.runtime.runner import CaptureOptions, runner_for
from warmrank.worker.torch_private.warm import ambient, dict_keys

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CacheOptions, GuardMode, OnGearMiss
    from warmrank.worker.devices.port import DeviceBackend
    from warmrank.worker.gears.rules import GearedRunner
    from warmrank.worker.runtime.call_guards import CallGuards
    from warmrank.worker.runtime.snapshot import Unchanged

# A constant that marshal cannot hold: this, and its JSON.
PLACEHOLDER = "__warmrank_constant__"
# What a frame raises that reads a member of the module which is gone.
_NOT_THERE = AttributeError, LookupError, TypeError


class Variant:
    """A loaded artifact, bound to the method of ``site``.

    ``options`` are those of the function, for the code in them.

    Attributes:
        stored: the artifact.
        method: the method that it is bound to.
        device_kind: of the module.
        ambient: the process's state when it was loaded.
        runner: runs its graph.
    """

    def __init__(
        self,
        stored: StoredArtifact,
        site: Site,
        *,
        backend: DeviceBackend,
        guards: GuardMode,
        on_gear_miss: OnGearMiss = "error",
        options: CacheOptions,
    ) -> None:
        artifact, facts = stored.artifact, stored.artifact.facts
        self.stored = stored
        self.method = site.method
        self._module: Any = site.method.__self__
        engine = engine_named(artifact.engine)
        groups = {}
        if artifact.roles:
            from warmrank.worker.groups import resolve

            groups = {role: resolve(role) for role in artifact.roles}
        self._groups = {role: (name, weakref.ref(group)) for role, (name, group) in groups.items()}
        names = {role: name for role, (name, _) in groups.items()}
        graph = engine.load(artifact.sections, stored.files(), names, site=site)
        self.runner = runner_for(engine, graph, facts, backend, CaptureOptions.of(site.config))
        self.device_kind = backend.kind
        self.ambient = ambient(backend.kind)
        self._functions = functions_in_options(options) if guards == "always" else []
        self._digest = partial(code_in_options, options)
        self._code: Unchanged | None = None
        self._guards: CallGuards | None = None
        self._guard_options = guards, on_gear_miss
        self._geared: GearedRunner | None = None
        if facts.gears is not None:
            from warmrank.worker.gears.rules import GearedRunner

            self._geared = GearedRunner(self.runner, facts.gears, on_miss=on_gear_miss)
        # The guards let nothing but gears pass, so the runner needs to be asked only where they do not.
        asked = guards == "skip" or on_gear_miss == "pad"
        self._graph = self._geared if asked and self._geared is not None else self.runner
        self.bind_frame()
        self._unpack: FunctionType | None = None
        self.settle()

    def __repr__(self) -> str:
        artifact = self.stored.artifact
        return f"<Variant {self.stored.sha256[:12]} of {artifact.name}, engine {artifact.engine}>"

    def bind_frame(self) -> None:
        """Look up anew what the frame names: classes may have been made again, by a reload of a module."""
        self._frame = bind(self.stored.artifact.frame, function_of(self.method), self._graph)

    @property
    def guards(self) -> CallGuards:
        """Conditions on calls; made by the load, with guards "always" by the second call."""
        if self._guards is None:
            from warmrank.worker.runtime.call_guards import CallGuards

            self._guards = CallGuards(self, *self._guard_options)
        return self._guards

    @property
    def writes(self) -> bool:
        """True if a call writes to tensors that were there before it."""
        return MUTATED in self.stored.artifact.facts.input_classes

    def lost_groups(self) -> list[str]:
        """Roles whose groups are not those that the graph was loaded for."""
        if not self._groups:
            return []
        from warmrank.worker.groups import by_role

        present = {role: (name, weakref.ref(group)) for role, (name, group) in by_role().items()}
        return [role for role, known in self._groups.items() if present.get(role) != known]

    def code_changed(self) -> bool:
        """True if a compile would now use other decompositions or passes than this artifact."""
        return self._code is not None and not self._code.holds()

    def settled_positions(self, asked: Collection[int]) -> tuple[int, ...]:
        """The graph's tensors whose conditions no call checks, because no call brings them."""
        facts, guards = self.stored.artifact.facts, self.stored.artifact.guards
        per_call = {readable(text(guards.nodes, node)) for node in (*guards.volatile, *asked)}
        arguments = argument_names(function_of(self.method).__code__)
        names = facts.input_names or ("",) * len(facts.input_classes)
        positions = []
        for index, (kind, name) in enumerate(zip(facts.input_classes, names, strict=True)):
            variable = name.partition(".")[0].partition("[")[0].partition("(")[0]
            if kind != NUMBER and name not in per_call and variable not in arguments:
                positions.append(index)
        return tuple(positions)

    def settle(self) -> None:
        """Note the state of the module for which all conditions were just found to hold."""
        asked = frozenset[int]()
        if self._guards is not None or self._guard_options[0] != "always":
            self.guards.settle()
            asked = self.guards.asked
        if self._functions:
            from warmrank.worker.runtime.snapshot import Unchanged

            self._code = Unchanged(self._digest, self._functions)
        self.runner.due = self.settled_positions(asked)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; `StateChanged` where what its graph takes is not there any more."""
        try:
            return self._frame(self._module, *args, **kwargs)
        except _NOT_THERE:
            self.inputs_of(args, kwargs)
            raise

    def inputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The graph's inputs in a call, which is not run; `StateChanged` where one is not there any more."""
        if self._unpack is None:
            self._unpack = bind(self.stored.artifact.frame, function_of(self.method), _hand_over)
        try:
            self._unpack(self._module, *args, **kwargs)
        except _Inputs as handed_over:
            return handed_over.inputs
        except _NOT_THERE as error:  # of a layer that was replaced, which not every mode asks about
            found = f"missing ({type(error).__name__}: {error})"
            raise StateChanged(f"what {self.stored.artifact.name} reads", found) from error
        raise corrupt(str(self.stored.path), "its frame does not call its graph")

    def capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Capture for this call's shapes, or for all gears, without lasting effect on any of its inputs."""
        for inputs in self.gear_inputs(args, kwargs):
            self.runner.prepare(*inputs)

    def gear_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The graph's inputs in calls like this one: of every gear, largest first; its own without gears."""
        inputs = self.inputs_of(args, kwargs)
        return [inputs] if self._geared is None else self._geared.gear_inputs(inputs)


class _Inputs(BaseException):
    """Carries a graph's inputs out of the frame, past everything that it does after the graph."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.inputs = inputs


def _hand_over(*inputs: Any) -> tuple[Any, ...]:
    raise _Inputs(inputs)


# A warm load must not import these; the frame needs a few one-line functions of the first, at most.
_LAZY_IMPORTS = ("torch._dynamo", "torch._inductor", "sympy")


def bind(frame: Frame, function: FunctionType, graph: Callable[..., Any]) -> FunctionType:
    """The frame as a function of the cached function's signature (``self`` first) that calls ``graph``."""
    scope = _Scope(function.__globals__)
    scope["__builtins__"] = builtins
    scope[frame.names["graph"]] = graph
    for name, module in frame.names["imports"].items():
        is_lazy = module.startswith(_LAZY_IMPORTS)
        scope[name] = StandIns(module) if is_lazy else importlib.import_module(module)
    for name, encoded in frame.names["objects"].items():
        scope[name] = decode(encoded)
    for name in frame.names["builtins"]:
        scope[name] = vars(builtins)
    # The file is private to this user, or was fetched under a signature that the store's policy checked.
    code = _restore(marshal.loads(frame.code))  # noqa: S302
    bound = FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def _restore(code: CodeType) -> CodeType:
    constants = list(code.co_consts)
    for index, value in enumerate(constants):
        if isinstance(value, CodeType):
            constants[index] = _restore(value)
        elif isinstance(value, tuple) and len(value) == 2 and value[0] == PLACEHOLDER:
            constants[index] = decode(json.loads(value[1]))
    return code.replace(co_consts=tuple(constants))


class _Scope(dict[str, Any]):
    """The frame's globals: its own names, and the function's globals as they are at each call."""

    def __init__(self, globals_: dict[str, Any]) -> None:
        super().__init__()
        self._globals = globals_

    def __missing__(self, name: str) -> Any:
        return self._globals[name]


class StandIns:
    """Stands for a module that must not be imported by a load; imports it if another name is really used."""

    object_new = staticmethod(object.__new__)
    dict_getitem = staticmethod(dict.__getitem__)
    list_getitem = staticmethod(list.__getitem__)
    iter_next = staticmethod(next)
    dataclass_fields = staticmethod(dataclasses.fields)
    make_cell = staticmethod(CellType)
    # Dynamo's profiler range is not wanted here.
    record_pregraph_bytecode_enter = staticmethod(lambda: None)
    record_pregraph_bytecode_exit = staticmethod(lambda _range: None)
    call_storage_offset = staticmethod(lambda tensor: tensor.storage_offset())
    dict_keys_getitem = staticmethod(lambda members, n: dict_keys(members)[n])
    set_getitem = staticmethod(lambda members, position: list(members)[position])

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def call_size(tensor: torch.Tensor, dim: int) -> int:
        """A size; -1 where a tensor of the module lost the dimension, which is found where it is compared."""
        try:
            return tensor.size(dim)
        except IndexError:
            return -1

    @staticmethod
    def call_stride(tensor: torch.Tensor, dim: int) -> int:
        """The same for a stride."""
        try:
            return tensor.stride(dim)
        except IndexError:
            return -1

    @staticmethod
    def tuple_iterator_getitem(iterator: Any, position: int) -> Any:
        """A member that an iterator has still to come to."""
        _, (members,), start = iterator.__reduce__()
        return members[start + position]

    @staticmethod
    def object_setattr_ignore_descriptor(instance: Any, name: str, value: Any) -> None:
        """Set an attribute of the instance itself."""
        object.__getattribute__(instance, "__dict__")[name] = value

    @staticmethod
    def object_delattr_ignore_descriptor(instance: Any, name: str) -> None:
        """Delete an attribute of the instance itself."""
        del object.__getattribute__(instance, "__dict__")[name]

    @staticmethod
    def to_numpy_helper(value: Any) -> Any:
        """Tensors as arrays of NumPy, in lists and tuples, too."""
        if isinstance(value, tuple | list):
            return type(value)(map(StandIns.to_numpy_helper, value))
        return value.numpy(force=True) if isinstance(value, torch.Tensor) else value

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
