"""Calls whose results a graph relies on: functions without effects that read the process's state.

Layout of a call: ``[function, arguments, named arguments, result]``. A function is ``module:name``; arguments
and results are as in `constants`, but a process group, or its name as an argument, stands there by its role:
``{"group": "tp"}``, and a logger by its name. A rank and a size that are read from a group are calls of
``get_rank`` and ``get_world_size``.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import NotPortable, WorkerError
from warmrank.worker.groups import is_group, resolve, role_of
from warmrank.worker.repeatable import modules_sought
from warmrank.worker.runtime import constants
from warmrank.worker.runtime.decoding import class_named, decode, equal
from warmrank.worker.torch_private.warm import known_groups

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from warmrank.worker.torch_private.evaluated import AskedCall

Call = tuple[str, list[Any], dict[str, Any], Any]

SIZE = "torch.distributed.distributed_c10d:get_world_size"
RANK = "torch.distributed.distributed_c10d:get_rank"
_NAME = "torch.distributed.distributed_c10d:_get_process_group_name"
# Equal on all ranks of a launch.
_OF_ALL = frozenset(
    {
        SIZE,
        "torch.distributed.distributed_c10d:_get_group_size_by_name",  # which all_gather and its like ask for
        "torch.distributed.distributed_c10d:is_initialized",
        "torch.distributed:is_available",
    }
)
_GROUP = "group"
_NONE = "none"
_GROUPS = "torch.distributed"
_IMPORTS = "warmrank.worker.repeatable:import_error"
_AT_LOADS = "importlib", _IMPORTS, "warmrank.worker.repeatable:order_of_set"
_MODULE = "module"
_LOGGER = "logger"
# What functions raise where the process lacks what they ask for.
_REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError,
    TypeError, ValueError, WorkerError,
)  # fmt: skip


def size_of(role: str) -> Call:
    """The call that says how many ranks the group of a role has."""
    return (SIZE, [{_GROUP: role}], {}, resolve(role)[1].size())


def name_of(group: ProcessGroup) -> Call:
    """The call that says how a group is called in a process."""
    return (_NAME, [{_GROUP: role_of(group)}], {}, group.group_name)


def from_trace(calls: Iterable[AskedCall]) -> Iterator[Call]:
    """The calls of a trace that answer the same when they are made again.

    Others depend on the traced code, which changes the state for itself and puts it back.

    Raises:
        NotPortable: no later process can make a call.
    """
    for item in calls:
        try:
            call = _encoded(item)
        except NotPortable as error:
            name = getattr(item.function, "__qualname__", None) or str(item.function)
            raise NotPortable(
                f"the function calls {name}, and a later process cannot: {error.message}. Call it outside, "
                "and keep the result as an attribute."
            ) from error
        if equal(result_of(call), call[3]):
            yield call


def _encoded(item: AskedCall) -> Call:
    if item.args is None:
        raise NotPortable("its arguments are no constants")
    named = {name: _argument(value) for name, value in item.kwargs.items()}
    return _name(item.function), [*map(_argument, item.args)], named, _encoded_result(item.result)


def _encoded_result(result: Any) -> Any:
    """A result; of a module's specification, its name, because it says where the module stands, too."""
    return {_MODULE: result.name} if isinstance(result, ModuleSpec) else constants.encode(result)


def _name(function: Callable[..., Any]) -> str:
    """``module:name`` under which a function is found."""
    name = getattr(function, "__qualname__", function.__name__)
    for module in (function.__module__, "torch", "torch._C"):
        with contextlib.suppress(ImportError, AttributeError):
            found = class_named([module, name]) if module else None
            if function in (found, getattr(found, "__wrapped__", None)):  # one that keeps its results
                return f"{module}:{name}"
    raise NotPortable(f"{name} is found under no name")


def _argument(value: Any) -> Any:
    if isinstance(value, logging.Logger):
        return {_LOGGER: value.name}
    if is_group(type(value)):
        return {_GROUP: role_of(value)}
    if isinstance(value, str) and value in known_groups():
        return {f"{_GROUP}_name": role_of(value)}
    return constants.encode(value)


def _decoded(argument: Any) -> Any:
    if isinstance(argument, dict) and (role := argument.get(_GROUP) or argument.get(f"{_GROUP}_name")):
        name, group = resolve(role)
        return group if _GROUP in argument else name
    if isinstance(argument, dict) and _LOGGER in argument:
        return logging.getLogger(argument[_LOGGER])
    return decode(argument)


def result_of(call: Call) -> Any:
    """Result of a call in this process, encoded; `_NONE` where it cannot be made."""
    try:
        made, args, kwargs = _bound(call)
        return _encoded_result(made(*args, **kwargs))
    except _REFUSALS:
        return _NONE


def _bound(call: Call) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    function, args, kwargs, _ = call
    named = {name: _decoded(value) for name, value in kwargs.items()}
    return class_named(function.split(":", 1)), [_decoded(value) for value in args], named


def mismatches(calls: Iterable[Call]) -> Iterator[str]:
    """In words, calls whose results are not as traced."""
    for call in calls:
        present = result_of(call)
        if not equal(present, call[3]):
            yield f"{text(call)}: {_shown(call[3])} -> {_shown(present)}"


def watch(calls: Sequence[Call]) -> Callable[[], bool]:
    """A function that says whether results that hold now still do, in a microsecond or two.

    An import that fails is asked again only where modules that it looks for came or went; what is installed,
    and orders of sets, only by a load; what depends on groups where these are not the same any more, which a
    call looks at by itself (`worker.runtime.call_guards`).
    """
    here = [(*_bound(call), call[3]) for call in calls if not call[0].startswith((_GROUPS, *_AT_LOADS))]
    of_imports = [call for call in calls if call[0] == _IMPORTS]
    sought = sorted({name for call in of_imports for name in modules_sought(*_bound(call)[1])})
    known = [name in sys.modules for name in sought]

    def holds() -> bool:
        nonlocal known
        if sought and known != (present := [name in sys.modules for name in sought]):
            if any(mismatches(of_imports)):
                return False
            known = present
        try:
            return all(
                equal(_encoded_result(made(*args, **kwargs)), result) for made, args, kwargs, result in here
            )
        except _REFUSALS:
            return False

    return holds


def text(call: Call) -> str:
    """A call as a reader would write it: ``get_rank(tp)``."""
    function, args, kwargs, _ = call
    named = (f"{name}={_shown(value)}" for name, value in kwargs.items())
    return f"{function.partition(':')[2]}({', '.join([*map(_shown, args), *named])})"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        ((tag, payload),) = value.items()
        if tag.startswith((_GROUP, _MODULE, _LOGGER)):
            return str(payload)
        from warmrank.worker.runtime.describe import plain

        return repr(plain(dict(value)))  # which may be what is no longer there: a member of an enum
    return str(value)


def asks_for_rank(calls: Iterable[Call]) -> bool:
    """True if a result depends on which rank calls, not only on how many there are."""
    return any(call[0].startswith(_GROUPS) and call[0] not in _OF_ALL for call in calls)
