"""Operators that are not torch's own: what they do in Python while a graph is lowered, who registers them.

Dynamo calls an operator and does not look into it. What runs while a graph is lowered leaves its mark there
all the same: a kernel for all devices (``CompositeImplicitAutograd``) is taken apart into its operators, and
the shapes that a fake kernel answers become part of the code. What runs on a device is called anew each time.

What is relied on (torch 2.11 to 2.15):

* ``torch._C._dispatch_dump(name)`` has a line ``<key>: registered at <file>:<line> :: ...`` for each kernel,
  and one ``debug: registered at <file>:<line>`` for the definition;
* ``torch._library.simple_registry.singleton.find(name).fake_impl.kernel`` has the fake kernel in ``func``, at
  times in a wrapper of torch's, or is None;
* ``torch._library.custom_ops.OPDEFS`` has the definition of every ``custom_op`` and ``triton_op`` by name:
  its function in ``_init_fn``, its fake kernel in ``_abstract_fn``, others in ``_torch_dispatch_fns``;
* an overload has kernels of `py_impl` in ``py_kernels`` and ``python_key_table``;
* ``torch._decomp.global_decomposition_table`` maps kinds of tables to overload -> decomposition.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module, package_of

if TYPE_CHECKING:
    from torch.fx import GraphModule

FACTS = {
    "torch._C": "_dispatch_dump",
    "torch._library.simple_registry:singleton": "find",
    "torch._library.custom_ops": "OPDEFS",
}

_KERNEL = re.compile(r"^(\w+)(?:\[\w+\])?: registered at (.+):\d+ ::", re.MULTILINE)
_DEFINITION = re.compile(r"^debug: registered at (.+):\d+", re.MULTILINE)
_WHILE_LOWERING = re.compile(r"CompositeImplicitAutograd|Meta|Fake|Autograd\w*|ADInplaceOrView|Python\w*")
_IN_THE_KEY = ("torch_npu", "torchair", "npugraph_ex", "warmrank.worker")  # packages whose versions are
# A warm load must not import these.
_FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy", "torchair")


def operators_of(graph_module: GraphModule) -> dict[str, Any]:
    """The operators of a graph that ``import torch`` alone need not bring, by name with overload."""
    found: dict[str, Any] = {}
    for part in graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            target: Any = node.target
            overloads: list[Any] = []
            if type(target) is torch._ops.OpOverload:
                overloads = [target]
            elif type(target) is torch._ops.OpOverloadPacket:
                overloads = [getattr(target, name) for name in target.overloads()]  # type: ignore[no-untyped-call]
            found.update((overload.name(), overload) for overload in overloads)
    return {name: found[name] for name in sorted(found) if not name.startswith("aten::")}


def registered_by(name: str) -> str:
    """The module that registers an operator; empty where no module of Python's does.

    Raises:
        NotPortable: it is defined where no later process can find it.
    """
    definition = _definition(name)
    if definition is not None:
        return _importable(str(definition._init_fn.__module__), name)
    file = next(iter(_DEFINITION.findall(torch._C._dispatch_dump(name))), "")
    module = _module_at(file, name)
    if module:
        return module
    package = name.partition("::")[0]  # a library in C++ comes with a package of the same name, if any
    return package if package in sys.modules else ""


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
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except (AttributeError, RuntimeError):
        return None


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
    kernel = torch._library.simple_registry.singleton.find(name.partition(".")[0]).fake_impl.kernel
    if kernel is not None:
        yield kernel.func
    for table in ("py_kernels", "python_key_table"):
        yield from (item for item in getattr(overload, table, {}).values() if not _is_pinned(item))
    decompositions = getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {})
    for table in decompositions.values():
        if overload in table and not _is_pinned(table[overload]):
            yield table[overload]
    files = {
        file for key, file in _KERNEL.findall(torch._C._dispatch_dump(name)) if _WHILE_LOWERING.fullmatch(key)
    }
    for file in sorted(files):
        module = _module_at(file, name)
        if module and package_of(module) not in _IN_THE_KEY and not is_pinned_module(module):
            yield sys.modules[module], file


def _is_pinned(function: Any) -> bool:
    return is_pinned_module(getattr(function, "__module__", None))


def _module_at(file: str, operator: str) -> str:
    """The module of a file; empty for one in C++."""
    from warmrank.worker.keys.code import modules_by_file

    if not file.endswith(".py") and not file.startswith("<"):
        return ""
    module = modules_by_file().get(file)
    return _importable("" if module is None else module.__name__, operator, file)


def _importable(module: str, operator: str, file: str = "") -> str:
    if module in sys.modules and (module == "__main__" or getattr(sys.modules[module], "__file__", None)):
        return module
    msg = (
        f"operator {operator} is defined in {file or module}, which no later process could find again, so a "
        "change of it could not be noticed; put it into a module or script file"
    )
    raise NotPortable(msg, what=operator)
