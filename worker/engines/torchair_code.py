"""TorchAir's generated code, made equal in every process that compiles the same, and bound at a load.

TorchAir writes into it what belongs to one process only:

* ``pool=(0, 7)``: the handle of a custom memory pool; kept as ``pool=None``, and bound to this process's;
* ``fx_graph_name="graph_3"``, and tags of events that begin with it: a counter of the process; kept as
  `NAME`, and bound to a number of this process, because events are looked up by their tags. Tags of other
  graphs of the process, which TorchAir lists too, are left out;
* sets of labels, in the order of this process's hashes: kept sorted;
* ``device(type='npu', index=3)`` and ``'npu:3'``: the rank's device; kept as index 0 and `DEVICE`;
* the directory that it works in: kept empty, and set by TorchAir's own loader;
* paths of the configuration, those of dumps with the rank in them: kept as `PATH` and the option's name;
* names of process groups: kept as `GROUP` and the group's role, and bound to this rank's name;
* ``main()``, an example of a call, which nothing calls: left out.

Functions of ``math`` and ``operator`` stand in the code by the names of globals that FX makes for them
(``math_trunc``, ``_operator_abs``), which TorchAir leaves out: a load imports them.

All of it is found in the syntax tree, so text inside of strings is not mistaken.

Tensor constants, which TorchAir pickles into its code with addresses, are a section of the artifact: a
compile takes them out, by TorchAir's own function, of code that this process just made; a loaded code asks
`held` for them. So nothing of the store is ever unpickled.
"""

from __future__ import annotations

import _operator
import ast
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.values import Value

NAME = "warmrank graph"
GROUP = "warmrank group "
PATH = "warmrank path "
DEVICE = "warmrank device"
_CONSTANTS = "warmrank constants"
_INFO = "AclGraphCacheInfo"
_PICKLE, _REBUILT, _MODULE = "serialized_gm", "rebuild_gm", "fx_graph"
_OPTIONS = re.compile(r"^-+compile options-+$", re.MULTILINE)
_numbers = itertools.count(1 << 20)  # far above those that TorchAir itself counts in this process
_held: dict[str, object] = {}


class Own(Value):
    """Values that belong to one process."""

    # role -> this process's name of the process group
    groups: Mapping[str, str] = field(default_factory=dict)
    pool: object | None = None  # handle of the custom memory pool that the configuration names, or None
    # TorchAir's option -> path that the configuration names
    paths: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""  # where TorchAir works; it writes that down with static kernels and GE's cache
    # kind and index of the device that the module lies on; ``""`` where it has no index
    device: tuple[str, int] = ("", 0)


def portable(code: str, own: Own) -> str:
    """The code without what belongs to the process that compiled it.

    Raises `NotPortable`: it holds the address of an object, the number of a stream, or another device.
    """
    tree = ast.parse(code)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == "main")
    ]
    found = ast.unparse(_Portable(own, tree).visit(tree)) + "\n"
    if address := re.search(r"\bat 0x[0-9a-f]{6,}", found):
        msg = (
            f"TorchAir's code for this function holds an object's address ({address.group(0)}), so no later "
            "process could use it; use engine graph for this function"
        )
        raise NotPortable(msg, what="address")
    return found


class _Portable(ast.NodeTransformer):
    """Takes out of a syntax tree what belongs to this process."""

    def __init__(self, own: Own, tree: ast.AST) -> None:
        self._own = own
        self._roles = {group: role for role, group in own.groups.items()}
        calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and _called(call) == _INFO]
        given = [(keyword.arg, keyword.value) for call in calls for keyword in call.keywords]
        for name, value in given:
            if name == "user_stream_info" and isinstance(value, ast.Dict) and value.keys:
                msg = (
                    "the function runs on a stream that was made outside of it, which TorchAir writes down "
                    "by its number in this process; name streams by npu_stream_switch, or use engine graph"
                )
                raise NotPortable(msg, what="stream")
        names = [node for name, value in given if name == "fx_graph_name" for node in _texts(value)]
        self._name = str(names[0].value) if names else ""
        lists = [value for name, value in given if name == "tagged_event_names"]
        listed = {id(node): str(node.value) for part in lists for node in _texts(part)}
        # TorchAir made those that begin with the graph's name; of others, those that its code uses stay.
        self._tags = {text for text in listed.values() if self._name and text.startswith(f"{self._name}_")}
        self._used = self._tags | {str(node.value) for node in _texts(tree) if id(node) not in listed}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if "c10d" in ast.unparse(node.func):
            for item in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(item, ast.Constant) and item.value in self._roles:
                    item.value = GROUP + self._roles[str(item.value)]
        kind, index = self._own.device
        for item in _device_indices(node, kind):
            if item.value != index:
                other = f"{kind}:{item.value!r}"
                msg = (
                    f"the function makes tensors on {other}, and its module lies on {kind}:{index}; another "
                    "rank could not tell which device is meant. Make them where the module lies."
                )
                raise NotPortable(msg, what=other)
            item.value = 0
        if _called(node) == _INFO:
            self._visit_info(node)
        return self.generic_visit(node)

    def _visit_info(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == "pool":
                keyword.value = ast.Constant(None)
            elif keyword.arg == "tagged_event_names":
                kept = [item for item in _texts(keyword.value) if item.value in self._used]
                keyword.value = ast.List(list(kept), ast.Load())
            elif isinstance(keyword.value, ast.Set):
                self.generic_visit(keyword.value)
                keyword.value.elts.sort(key=ast.unparse)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = self._text(node.value)
        return node

    def _text(self, value: str) -> str:
        own = self._own
        if own.directory and _lies_in(value, own.directory):
            return ""
        for option, path in own.paths.items():
            if _lies_in(value, path):
                return f"{PATH}{option}:{value[len(path) :]}"
        if own.device[0] and value == _indexed(own.device):
            return DEVICE
        is_own = bool(self._name) and (value == self._name or value in self._tags)
        return NAME + value[len(self._name) :] if is_own else value


def bound(code: str, own: Own, constants: object = None) -> str:
    """Portable code for this process; ``constants``, as attributes, are handed out once, by `held`.

    Raises:
        KeyError: it names a group or a path that this process has not.
        SyntaxError: it is none.
    """
    token, tree = f"{next(_numbers)}", ast.parse(code)
    made = ast.unparse(_Bound(own, token, tree).visit(tree))
    if constants is not None:
        _held[token] = constants
    return made


def held(token: str) -> object:
    """The constants of a load that is under way."""
    return _held.pop(token)


class _Bound(ast.NodeTransformer):
    """Puts what belongs to this process into a syntax tree."""

    def __init__(self, own: Own, token: str, tree: ast.AST) -> None:
        self._own, self._token = own, token
        names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        self._assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        for module in (math, _operator):
            function = node.id.removeprefix(f"{module.__name__}_")
            if function != node.id and node.id not in self._assigned and hasattr(module, function):
                return _expression(f"__import__({module.__name__!r}).{function}")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        for keyword in node.keywords:
            if self._own.pool is not None and keyword.arg == "pool" and _called(node) == _INFO:
                keyword.value = _expression(repr(self._own.pool))
        for item in _device_indices(node, self._own.device[0]):
            item.value = self._own.device[1]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if not isinstance(value, str):
            return node
        if value == _CONSTANTS:
            return _expression(f"__import__({__name__!r}, fromlist=['held']).held({self._token!r})")
        if value.startswith(NAME):
            node.value = f"graph_{self._token}{value.removeprefix(NAME)}"
        elif value.startswith(GROUP):
            node.value = self._own.groups[value.removeprefix(GROUP)]
        elif value.startswith(PATH):
            option, _, rest = value.removeprefix(PATH).partition(":")
            node.value = self._own.paths[option] + rest
        elif value == DEVICE:
            node.value = _indexed(self._own.device)
        return node


def taken(code: str, serializer: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """Code without pickled constants, and these by name.

    Args:
        code: as TorchAir generated it, in this process.
        serializer: TorchAir's ``SerializableGraphModule``.
    """
    tree = ast.parse(code)
    assigned = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    pickled = assigned[_PICKLE].value if _PICKLE in assigned else None
    if not (isinstance(pickled, ast.Constant) and isinstance(pickled.value, bytes)):
        return code, {}
    module = serializer.rebuild_from_bytes(pickled.value).artifact
    assigned[_PICKLE].value = assigned[_REBUILT].value = ast.Constant(None)
    assigned[_MODULE].value = ast.Constant(_CONSTANTS)
    return ast.unparse(tree), {name: getattr(module, name) for name in sorted(set(_attributes(tree)))}


def _attributes(tree: ast.Module) -> Iterator[str]:
    """Names of the attributes that the code takes from the rebuilt module: ``getattr(fx_graph, 'name')``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "getattr":
            match node.args:
                case [ast.Name(id="fx_graph"), ast.Constant(value=str(name)), *_]:
                    yield name


def portable_signature(text: str, own: Own) -> str:
    """TorchAir's description of a graph and its inputs, without files' paths and the options.

    The request has the options; here they would name pools and paths.
    """
    kind, index = own.device
    lines = []
    for line in _OPTIONS.split(text)[0].splitlines():
        for role, name in own.groups.items() if "c10d" in line else ():
            line = line.replace(repr(name), repr(GROUP + role))  # noqa: PLW2901 - of no rank
        if kind:
            line = line.replace(f"device(type='{kind}', index={index})", f"device(type='{kind}')")  # noqa: PLW2901
            line = line.replace(f"'{kind}:{index}'", f"'{kind}'")  # noqa: PLW2901
        if not line.lstrip().startswith("# "):
            lines.append(line)
    return "\n".join(lines)


def roles_in(code: str) -> frozenset[str]:
    """The roles of process groups that portable code names."""
    values = (str(node.value) for node in _texts(ast.parse(code)))
    return frozenset(value.removeprefix(GROUP) for value in values if value.startswith(GROUP))


def _lies_in(value: str, path: str) -> bool:
    return value == path or value.startswith(path.rstrip(os.sep) + os.sep)


def _indexed(device: tuple[str, int]) -> str:
    return f"{device[0]}:{device[1]}"


def _called(call: ast.Call) -> str:
    """Name of a function that is called by a plain name."""
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _texts(tree: ast.AST) -> list[ast.Constant]:
    """String constants."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


def _device_indices(call: ast.Call, kind: str) -> list[ast.Constant]:
    """The index in ``device(type=kind, index=...)``; empty for other calls, and without a kind."""
    values = {
        keyword.arg: keyword.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)
    }
    if not kind or _called(call) != "device" or all(value.value != kind for value in values.values()):
        return []
    return [value for name, value in values.items() if name == "index"]
