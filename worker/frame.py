"""The frame: Dynamo's code object that unpacks the arguments, calls the graph, and packs the outputs.

Kept as marshal (version 2, equal bytes for equal code) with everything that differs between processes
taken out: file name, lines, and the counters and ids in Dynamo's global names.

Layout (JSON beside the marshalled code)::

    {"graph": name of the graph's global,
     "imports": {global name: module},
     "objects": {global name: encoded constant or class},
     "builtins": [global names bound to the builtins mapping],
     "writes": whether a call writes to Python objects that were there before it}
"""

from __future__ import annotations

import builtins
import dis
import importlib
import marshal
import re
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import NotPortable
from warmrank.worker.guards import constants
from warmrank.worker.stand_ins import StandIns
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.torch_private.tracing import Trace

_MARSHAL_VERSION = 2
_GRAPH_NAME = "__compiled_fn"
_BUILTINS = r"^__builtins_dict__\w*$"
_PLACEHOLDER = "__warmrank_constant__"
# A global that Dynamo named for the address of its value.
_ADDRESSED = r"_\d+_c\d+$"
# A warm load must not import these; the frame needs a few one-line functions of the first, at most.
_LAZY_IMPORTS = ("torch._dynamo", "torch._inductor", "sympy")


class Frame(Value):
    """A frame and what its global names mean; the layout stands in the module's docstring."""

    code: bytes
    names: dict[str, Any]


def extract(trace: Trace, function: FunctionType) -> Frame:
    """The portable frame of a trace.

    Raises:
        NotPortable: the frame refers to an object that another process cannot find, or sets a global.
    """
    _refuse_globals(trace.frame, function)
    user_names = {name for code in trace.codes for name in code.co_names}
    renames = {trace.graph_name: _GRAPH_NAME}
    names: dict[str, Any] = {"graph": _GRAPH_NAME, "imports": {}, "objects": {}, "builtins": []}
    names["writes"] = bool(trace.writes)
    external = trace.external_names - {trace.graph_name}
    # In the order of the code, because some names hold an address.
    for name in filter(external.__contains__, trace.frame.co_names):
        if name in trace.import_aliases and not re.search(_ADDRESSED, name):
            names["imports"][name] = trace.import_aliases[name]
        elif re.match(_BUILTINS, name):
            renames[name] = "__builtins_dict__"
            names["builtins"] = ["__builtins_dict__"]
        elif name not in user_names and not hasattr(builtins, name):
            renames[name] = f"__object_{len(renames)}"
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                names["imports"][renames[name]] = value.__name__
            else:
                names["objects"][renames[name]] = _encode_object(name, function)
    return Frame(code=marshal.dumps(_canonical(trace.frame, renames), _MARSHAL_VERSION), names=names)


def _refuse_globals(code: CodeType, function: FunctionType) -> None:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            msg = (
                f"{function.__qualname__} sets the global {instruction.argval}, which a cached function must "
                "not; keep it as an attribute of the module, or return it"
            )
            raise NotPortable(msg, what=str(instruction.argval))


def _encode_object(name: str, function: FunctionType) -> Any:
    if name not in function.__globals__:
        msg = f"the frame of {function.__qualname__} refers to {name}, which is nowhere defined"
        raise NotPortable(msg, what=name)
    try:
        return constants.encode(function.__globals__[name])
    except NotPortable as error:
        msg = f"the frame of {function.__qualname__} holds what no later process can find: {error.message}"
        raise NotPortable(msg, what=name) from error


def _canonical(code: CodeType, renames: Mapping[str, str]) -> CodeType:
    return code.replace(
        co_names=tuple(renames.get(name, name) for name in code.co_names),
        co_consts=tuple(_canonical_constant(item, renames) for item in code.co_consts),
        co_filename="<warmrank frame>",
        co_firstlineno=1,
        co_linetable=_one_line(len(code.co_code) // 2),
    )


def _one_line(num_units: int) -> bytes:
    """A line table with every instruction on the first line; without one, no traceback can be printed.

    Source of the form: CPython's ``Objects/locations.md`` (3.11 and later). An entry covers up to 8 code
    units; 13 is the kind without columns; the distance to the line before, 0, follows.
    """
    entries = (min(8, num_units - start) for start in range(0, num_units, 8))
    return b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in entries)


def _canonical_constant(value: Any, renames: Mapping[str, str]) -> Any:
    if isinstance(value, CodeType):
        return _canonical(value, renames)
    try:
        marshal.dumps(value, _MARSHAL_VERSION)
    except ValueError:
        import json

        return (_PLACEHOLDER, json.dumps(constants.encode(value), sort_keys=True))
    return value


def bind(frame: Frame, function: FunctionType, graph: Callable[..., Any]) -> FunctionType:
    """The frame as a function of the cached function's signature (``self`` first) that calls ``graph``."""
    scope = _Scope(function.__globals__)
    scope["__builtins__"] = builtins
    scope[frame.names["graph"]] = graph
    for name, module in frame.names["imports"].items():
        scope[name] = (
            StandIns(module) if module.startswith(_LAZY_IMPORTS) else importlib.import_module(module)
        )
    for name, encoded in frame.names["objects"].items():
        scope[name] = constants.decode(encoded)
    for name in frame.names["builtins"]:
        scope[name] = vars(builtins)
    # The file is private to this user, or was fetched under a signature that the store's policy checked.
    code = _restore(marshal.loads(frame.code))  # noqa: S302
    bound = FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def _restore(code: CodeType) -> CodeType:
    return code.replace(co_consts=tuple(_restore_constant(item) for item in code.co_consts))


def _restore_constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _restore(value)
    if isinstance(value, tuple) and len(value) == 2 and value[0] == _PLACEHOLDER:
        import json

        return constants.decode(json.loads(value[1]))
    return value


class _Scope(dict[str, Any]):
    """The frame's globals: its own names, and the function's globals as they are at each call."""

    def __init__(self, globals_: dict[str, Any]) -> None:
        super().__init__()
        self._globals = globals_

    def __missing__(self, name: str) -> Any:
        return self._globals[name]
