"""Writing the frame: Dynamo's code object that unpacks the arguments, calls the graph, packs the outputs.

Kept as marshal (version 2, equal bytes for equal code) with everything that differs between processes
taken out: file name, lines, and the counters and ids in Dynamo's global names.
"""

from __future__ import annotations

import builtins
import dis
import marshal
import re
from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import NotPortable
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.artifact import Frame
from warmrank.worker.runtime.variant import PLACEHOLDER

if TYPE_CHECKING:
    from warmrank.worker.torch_private.tracing import Trace


_MARSHAL_VERSION = 2
_GRAPH_NAME = "__compiled_fn"
_BUILTINS = r"^__builtins_dict__\w*$"
# A global that Dynamo named for the address of its value.
_ADDRESSED = r"_\d+_c\d+$"


def extract(trace: Trace, function: FunctionType) -> Frame:
    """The portable frame of a trace."""
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

        return (PLACEHOLDER, json.dumps(constants.encode(value), sort_keys=True))
    return value
