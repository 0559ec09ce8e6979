"""Notes of one trace on the objects that its frame looks at, writes to, and leaves results in."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import ConstantVariable, ConstDictVariable, DeletedVariable, TensorVariable
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew, VariableTracker
from torch._dynamo.variables.lists import BaseListVariable, DequeVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.lowering import SETS_SWITCH, source_name
from warmrank.worker.torch_private.patching import steps_in
from warmrank.worker.torch_private.warm import SETTING_NAMES, settings
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.fx import GraphModule

# How switches of the process are set, by their names in `warm.SETTINGS`; Dynamo puts the others back itself.
_SETTERS: dict[str, Callable[..., None]] = {
    "flash attention": torch._C._set_sdp_use_flash,
    "memory-efficient attention": torch._C._set_sdp_use_mem_efficient,
    "math attention": torch._C._set_sdp_use_math,
    "cudnn attention": torch._C._set_sdp_use_cudnn,
    "mkldnn": torch._C._set_mkldnn_enabled,
    "mkldnn deterministic": torch._C._set_mkldnn_deterministic,
    "cudnn": torch._C._set_cudnn_enabled,
    "cudnn deterministic": torch._C._set_cudnn_deterministic,
    "cudnn benchmark": torch._C._set_cudnn_benchmark,
    "fp16 accumulation": torch._C._set_cublas_allow_fp16_accumulation,
    "tf32 matmul": torch._C._set_cublas_allow_tf32,
    "tf32 cudnn": torch._C._set_cudnn_allow_tf32,
    "float32 matmul precision": torch.set_float32_matmul_precision,
}


class TracedWrite(Value):
    """A Python object that the frame writes to, and which of its attributes; none for a container."""

    source: str
    attribute: str


class TraceNotes:
    """Steps in where Dynamo looks at objects and writes the frame."""

    def __init__(
        self,
        function: str,
        note: Callable[[str, str, Any], None],
        free: Container[str],
        switches: Mapping[str, Any],
    ) -> None:
        """Take the function's name, and the switches of the process before it is traced.

        Args:
            function: its name.
            note: takes a fact about an object (kind, expression, detail).
            free: integers that stay symbols.
            switches: of the process, by their names.
        """
        self._function, self._note, self._free, self._switches = function, note, free, switches
        self.objects: dict[str, Any] = {}  # that it looked at, by their source expressions
        self.writes: dict[TracedWrite, None] = {}  # of the frame, in their order
        self._stored: set[str] = set()  # nodes whose tensors it puts into objects from before the call
        self.replaced: set[str] = set()  # expressions of attributes and items that hold others afterwards

    @steps_in("torch._dynamo.variables.builder:VariableBuilder", "__call__(value)")
    def _build(self, original: Any, builder: Any, value: Any) -> Any:
        self.objects[source_name(builder.source)] = value
        variable = original(builder, value)
        if type(value) is deque:  # Dynamo takes each for one without a limit
            variable.maxlen = ConstantVariable.create(value.maxlen)
        return variable

    @steps_in("torch._dynamo.variables.builder", "is_dynamic_source(source_name)")
    def _is_symbol(self, original: Any, name: str, *dimension: Any) -> Any:
        return name in self._free or original(name, *dimension)

    def counters(self) -> frozenset[str]:
        """Integers that the frame reads and may write: attributes, and members of containers."""
        integers = {name for name, value in self.objects.items() if type(value) is int}
        return frozenset(
            name
            for write in self.writes
            for name in integers
            if name in (f"{write.source}.{write.attribute}", f"{write.source}.__dict__[{write.attribute!r}]")
            or (not write.attribute and name.rpartition("[")[0] == write.source)
        )

    @steps_in("torch._dynamo.side_effects:SideEffects", "codegen_update_mutated")
    def _update(self, original: Any, effects: Any, *args: Any, **kwargs: Any) -> None:
        """Note what the frame writes to; refuse a switch of the process that stays changed."""
        left = _switches()
        if changed := [name for name in left if left[name] != self._switches[name]]:
            msg = f"{self._function} {SETS_SWITCH} ({', '.join(changed)})"
            raise NotPortable(msg, what=changed[0])
        for variable in effects._get_modified_vars():
            if isinstance(variable, DequeVariable):  # whose members are within its limit, as the frame's are
                variable.maxlen = ConstantVariable.create(None)
            if isinstance(variable.mutation_type, AttributeMutationNew | ValueMutationNew):
                continue
            local = getattr(variable, "local_name", None)
            source = f"L[{local!r}]"
            if variable.source is not None and not (source := _name_of(variable)):
                continue  # no condition hangs on it
            self._note_stored(effects, variable)
            names = effects.store_attr_mutations.get(variable, {}) if local is None else {}
            self.replaced.update([f"{source}.{name}" for name in names], _replaced(variable, source))
            self.writes.update((TracedWrite(source=source, attribute=name), None) for name in names or ("",))
            for name in (name for name in names if isinstance(names[name], DeletedVariable)):
                self._note_presence(source, vars(variable).get("value"), name)
        original(effects, *args, **kwargs)

    def _note_stored(self, effects: Any, written: Any) -> None:
        """Note the tensors that an object will hold, also in what is made in the call."""
        seen: set[int] = set()

        def look(variable: Any) -> None:
            if id(variable) in seen:
                return
            seen.add(id(variable))
            if isinstance(variable, TensorVariable):
                self._stored.add(variable.as_proxy().node.name)
            VariableTracker.visit(look, effects.store_attr_mutations.get(variable, {}))

        VariableTracker.visit(look, written)

    def stored(self, graph_module: GraphModule) -> tuple[int, ...]:
        """Positions of the outputs that the frame puts into objects from before the call."""
        (output,) = graph_module.graph.find_nodes(op="output")
        names = [getattr(value, "name", "") for value in output.args[0]]
        return tuple(index for index, name in enumerate(names) if name in self._stored)

    def _note_presence(self, source: str, value: Any, name: str) -> None:
        """Note whether an attribute is there that the call deletes: the frame deletes what was there."""
        self._note("has_attr" if hasattr(value, name) else "no_attr", source, name)
        if hasattr(value, "__dict__"):
            self._note("has_key" if name in vars(value) else "no_key", f"{source}.__dict__", name)


@contextlib.contextmanager
def switches_kept() -> Iterator[dict[str, Any]]:
    """Put switches of the process back that a trace changed; gives their values before it."""
    before = _switches()
    try:
        yield before
    finally:
        for name, put in _SETTERS.items():  # asked anew each time: one setter may set the next switch, too
            if before[name] not in (_switches()[name], "mixed"):
                put(before[name])


def _switches() -> dict[str, Any]:
    return dict(zip(SETTING_NAMES, settings(), strict=True))


def _name_of(variable: Any) -> str:
    """Dynamo's expression for a variable; empty for one that the function, or the tracer itself, made."""
    try:
        return source_name(variable.source) if variable.source is not None else ""
    except NotImplementedError:
        return ""


def _replaced(variable: Any, source: str) -> Iterator[str]:
    """Expressions of a container's items that hold other objects afterwards."""
    items: Any = ()
    if isinstance(variable, ConstDictVariable):
        held = ((key.vt, value) for key, value in variable.items.items())
        items = ((key.as_python_constant(), value) for key, value in held if key.is_python_constant())
    elif isinstance(variable, BaseListVariable):
        items = enumerate(variable.items)
    for key, value in items:
        place = f"{source}[{key!r}]"
        if _name_of(value) != place:
            yield place
