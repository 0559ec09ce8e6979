"""Operators: what their schemas say of memory, and what they do in Python.

What runs while a graph is lowered leaves its mark there, though Dynamo does not look into it: a kernel for
all devices (``CompositeImplicitAutograd``) is taken apart, and the shapes that a fake kernel answers become
part of the code. Relied on: the lines of ``_dispatch_dump`` that `_KERNEL` and `_DEFINITION` match; a fake
kernel is ``find(name).fake_impl.kernel.func`` of the simple registry, or None; ``OPDEFS`` has every
``custom_op`` and ``triton_op`` by name, with its function in ``_init_fn``, its fake kernel in
``_abstract_fn``, others in ``_torch_dispatch_fns``, and `_RULES`; ``py_kernels`` and ``python_key_table``
of an overload have kernels of `py_impl`.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import file_of, is_pinned_module, modules_by_file, package_of
from warmrank.worker.torch_private.warm import replaced_operator, replacing_call

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_KERNEL = re.compile(r"^(\w+)(?:\[\w+\])?: registered at (.+):\d+ ::", re.MULTILINE)
_DEFINITION = re.compile(r"^debug: registered at (.+):\d+", re.MULTILINE)
_WHILE_LOWERING = re.compile(
    r"CompositeImplicitAutograd|Meta|Fake|Autograd\w*|ADInplaceOrView|Python\w*|FuncTorch\w*|Autocast\w*"
)
# Attributes of a `custom_op`'s definition that take its place within a transform or autocast.
_RULES = ("_vmap_fn", "_setup_context_fn", "_backward_fn", "_autocast_dtype")
_IN_THE_KEY = ("torch_npu", "torchair", "npugraph_ex", "warmrank.worker")  # packages whose versions are
# A warm load must not import these.
_FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy", "torchair")
_LOCAL = re.compile(r"\bL\['([^']*)'\]")

DROPOUTS = frozenset(f"aten.{kind}dropout.default" for kind in ("", "feature_", "alpha_", "feature_alpha_"))


def readable(text: str) -> str:
    """Dynamo's names of arguments as a reader would write them: ``x`` for ``L['x']``."""
    return _LOCAL.sub(r"\1", text)


_PURE = frozenset({"aten", "prims"})
_OF_TORCH = _PURE | {"_c10d_functional", "c10d"}
# Operators that write to running statistics although no schema says so, and the argument that, being False,
# tells them not to (empty: there is none).
_RUNNING = ("running_mean", "running_var")
_UPDATING = {
    **{f"aten::{kind}batch_norm": "training" for kind in ("", "native_", "cudnn_", "miopen_")},
    "aten::_batch_norm_impl_index": "training",
    "aten::instance_norm": "use_input_stats",
    **{
        f"aten::batch_norm_{kind}": ""
        for kind in ("update_stats", "gather_stats", "gather_stats_with_counts")
    },
}

_QUANTIZING = ("aten::quantize_per_", "quantized::")  # whose traced results are no quantized tensors


def constant_of(module: Any, target: str) -> torch.Tensor:
    """The tensor that a graph holds under a dotted name.

    Raises:
        NotPortable: it is something else, or has no values.
    """
    value = functools.reduce(getattr, target.split("."), module)
    if not isinstance(value, torch.Tensor) or hasattr(value, "fake_mode"):
        msg = f"the graph holds {target}, a {type(value).__qualname__}, which no artifact can keep"
        raise NotPortable(msg, what=target)
    return value


def _schema_arguments(target: Any) -> Sequence[Any]:
    schema = getattr(target, "_schema", None)
    return () if schema is None else schema.arguments


def argument_name(target: Any, position: int) -> str:
    """The name of an operator's argument; empty where it has none."""
    arguments = _schema_arguments(target)
    return str(arguments[position].name) if position < len(arguments) else ""


def mutated_arguments(target: Any) -> tuple[int, ...]:
    """Positions of the arguments that an ATen operator may write to: by its schema, or known to be so."""
    unmarked = _RUNNING if schema_name(target) in _UPDATING else ()
    return tuple(
        position
        for position, argument in enumerate(_schema_arguments(target))
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in unmarked
    )


def written_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """The `mutated_arguments` that this call writes to; norms keep statistics in training only."""
    positions = mutated_arguments(target)
    switch = _UPDATING.get(schema_name(target))
    if not switch or argument_of(target, args, kwargs, switch) is not False:
        return positions
    return tuple(index for index in positions if argument_name(target, index) not in _RUNNING)


def returns_its_input(target: Any) -> bool:
    """True of an operator that returns the very tensor that it changed, its first argument."""
    returned: Sequence[Any] = getattr(getattr(target, "_schema", None), "returns", ())
    return len(returned) == 1 and bool(getattr(returned[0].alias_info, "is_write", False))


def schema_name(target: Any) -> str:
    """An operator's name without its overload (``aten::add``); empty for whatever has no schema."""
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name)


def storage_ids(value: Any) -> set[int]:
    """Identities of the memory behind a traced value or a node; fake tensors share memory as real ones do."""
    value = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    tensors = [item for item in as_list(value) if isinstance(item, torch.Tensor)]
    return {item.untyped_storage()._cdata for item in tensors if item.layout == torch.strided}


def as_list(value: Any) -> Sequence[Any]:
    """A list or tuple as it is; anything else as the only item of one."""
    return value if isinstance(value, list | tuple) else (value,)


def arguments_at(node: Node, positions: Iterable[int]) -> list[Any]:
    """Values of an operator's arguments by their places in its schema; defaults where the call gives none."""
    return [_given(node.target, node.args, node.kwargs, position) for position in positions]


def nodes_at(node: Node, positions: Iterable[int]) -> list[Node]:
    """The nodes among those, also in lists of tensors."""
    items = (item for value in arguments_at(node, positions) for item in as_list(value))
    return [item for item in items if isinstance(item, torch.fx.Node)]


def aliased_arguments(node: Node) -> list[Node]:
    """Arguments that a result may share memory with: by the schema, unless read only and elsewhere as traced.

    So a cast that changes the dtype (``to``) is no view.
    """
    mine = storage_ids(node)

    def may_share(argument: Node) -> bool:
        theirs = storage_ids(argument)
        return not (mine and theirs) or bool(mine & theirs)

    return [
        given
        for position, argument in enumerate(_schema_arguments(node.target))
        if argument.alias_info is not None
        for given in nodes_at(node, (position,))
        if argument.alias_info.is_write or may_share(given)
    ]


def unlike_memory(nodes: Iterable[Node]) -> str:
    """The first tensor on device meta, which has no memory, or quantized one, whose numbers it does not hold.

    Empty if there is none.
    """
    for node in nodes:
        where = "an input" if node.op == "placeholder" else f"the result of {node.target}"
        if schema_name(node.target).startswith(_QUANTIZING):
            return f"{where} is a quantized tensor"
        items = as_list(node.meta.get("val"))
        if any(isinstance(item, torch.Tensor) and item.device.type == "meta" for item in items):
            return f"{where} is a tensor on device meta"
    return ""


def argument_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """An argument by its schema's name, or its default; None where there is none."""
    for position, argument in enumerate(_schema_arguments(target)):
        if argument.name == name:
            return _given(target, args, kwargs, position)
    return None


def _given(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], position: int) -> Any:
    argument = _schema_arguments(target)[position]
    return args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)


def size_depends_on_data(node: Any) -> bool:
    """True if a node's result has a size that only the values of its inputs say."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    value = node.meta.get("val")
    return value is not None and bool(free_unbacked_symbols(value))


def calls_python(target: Any) -> bool:
    """True if an operator may be a Python function, whose results have the sizes that it likes."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in _OF_TORCH


def may_do_more(target: Any) -> bool:
    """True if an operator may do more than compute its results: send to other ranks, write, count."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in _PURE


def operators_of(graph_module: GraphModule) -> dict[str, Any]:
    """The operators of a graph that ``import torch`` alone need not bring, by name with overload."""
    found: dict[str, Any] = {}
    for part in graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            target: Any = node.target
            if type(target) is torch._ops.OpOverload:
                found[target.name()] = target  # type: ignore[no-untyped-call]
            elif type(target) is torch._ops.OpOverloadPacket:
                overloads = [getattr(target, name) for name in target.overloads()]  # type: ignore[no-untyped-call]
                found.update((overload.name(), overload) for overload in overloads)
    return {name: found[name] for name in sorted(found) if not name.startswith("aten::")}


def registered_by(name: str) -> str:
    """The module that registers an operator; empty where no module of Python's does.

    Raises:
        NotPortable: it is defined where no later process can find it.
    """
    if (definition := _definition(name)) is not None:
        return _importable(str(definition._init_fn.__module__), name)
    file = next(iter(_DEFINITION.findall(torch._C._dispatch_dump(name))), "")
    package = name.partition("::")[0]  # a library in C++ comes with a package of the same name, if any
    return _module_at(file, name) or (package if package in sys.modules else "")


def body_of(name: str) -> Any:
    """The function of a `custom_op`, unless it is torch's own; None where there is none."""
    definition = _definition(name)
    return None if definition is None or _is_pinned(definition._init_fn) else definition._init_fn


def missing(name: str, module: str) -> str:
    """Import the module that registers an operator, if need be; return why it is still missing, or ""."""
    if find(name) is None and module and not module.startswith(_FORBIDDEN):
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever the user's module does
            return (
                f"operator {name} is not registered, and {module}, which did, cannot be imported: {error!r}"
            )
    if find(name) is not None:
        return ""
    where = f"import {module}" if module else "load the library that defines it (torch.ops.load_library)"
    return f"operator {name} is not registered; {where} before the first call"


def find(name: str) -> Any:
    """An overload by its name, or None."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return at_path(f"torch.ops.{namespace}.{packet}.{overload or 'default'}")


def _definition(name: str) -> Any:
    return torch._library.custom_ops.OPDEFS.get(name.partition(".")[0])


def lowering_code(name: str, overload: Any) -> Iterator[Any]:
    """Functions that run while a graph is lowered; for those that cannot be had, their module and file.

    Raises:
        NotPortable: part of it stands where no later process can find it.
    """
    definition = _definition(name)
    if definition is not None:
        yield from (definition._abstract_fn, *definition._torch_dispatch_fns.values())
        yield from (rule for name in _RULES if (rule := getattr(definition, name, None)))
    kernel = torch._library.simple_registry.singleton.find(name.partition(".")[0]).fake_impl.kernel
    if kernel is not None:
        yield kernel.func
    for table in ("py_kernels", "python_key_table"):
        yield from (item for item in getattr(overload, table, {}).values() if not _is_pinned(item))
    decompositions = getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {})
    for table in decompositions.values():
        if overload in table and not _is_pinned(table[overload]):
            yield table[overload]
    kernels = _KERNEL.findall(torch._C._dispatch_dump(name))
    if any(key == "CompositeImplicitAutograd" for key, _ in kernels):  # which another kernel makes whole
        yield " ".join(sorted(key for key, file in kernels if file.endswith(".py")))
    files = {file for key, file in kernels if _WHILE_LOWERING.fullmatch(key)}
    for file in sorted(files):
        module = _module_at(file, name)
        if module and package_of(module) not in _IN_THE_KEY and not is_pinned_module(module):
            yield sys.modules[module], file


def registered(name: str) -> Callable[[], bool]:
    """A function that says whether an operator is the one that it is now, with the same code in Python."""

    def code() -> list[Any]:
        overload = find(name)
        return [overload, body_of(name), *lowering_code(name, overload)]

    known = code()
    return lambda: code() == known


def _is_pinned(function: Any) -> bool:
    return is_pinned_module(getattr(function, "__module__", None))


def _module_at(file: str, operator: str) -> str:
    """The module of a file; empty for one in C++."""
    if not file.endswith(".py") and not file.startswith("<"):
        return ""
    module = _modules.get(file)
    if module is None or sys.modules.get(module.__name__) is not module:  # which takes milliseconds to find
        module = _modules[file] = modules_by_file().get(file)
    return _importable("" if module is None else module.__name__, operator, file)


_modules: dict[str, Any] = {}  # by their files, as they were found last


def _importable(module: str, operator: str, file: str = "") -> str:
    if module in sys.modules and (module == "__main__" or file_of(sys.modules[module])):
        return module
    msg = (
        f"operator {operator} is defined in {file or module}, which no later process could find again, so a "
        "change of it could not be noticed; put it into a module or script file"
    )
    raise NotPortable(msg, what=operator)


def operator_path(target: Any) -> str:
    """``torch.ops`` path of an operator overload, for generated source.

    Raises:
        NotPortable: the target is a higher-order operator or something else without a stable name, or
            something else has its name.
    """
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        path = f"torch.ops.{namespace}.{name}.{target._overloadname}"
        if at_path(path) is not target or replacing_call(target) is not None:
            raise replaced_operator(path)
        return path
    msg = f"the graph calls {target!r} ({type(target).__qualname__}), which has no portable name"
    raise NotPortable(msg, what=repr(target))


def at_path(path: str) -> Any:
    """Object at a dotted name that begins with ``torch``; None where there is none."""
    try:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    except (AttributeError, RuntimeError):
        return None
