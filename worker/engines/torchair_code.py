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

All of it is found in the syntax tree, so text inside of strings is not mistaken.

Tensor constants, which TorchAir pickles into its code with addresses, are a section of the artifact: a
compile takes them out, by TorchAir's own function, of code that this process just made; a loaded code asks
`held` for them. So nothing of the store is ever unpickled.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import torch

from warmrank.worker.engines.graph import unpack_constants
from warmrank.worker.engines.graph_source import pack_constants
from warmrank.worker.errors import ArtifactCorrupt, NotPortable
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
_held: dict[str, SimpleNamespace] = {}


class Own(Value):
    """Values that belong to one process."""

    # role -> this process's name of the process group
    groups: Mapping[str, str] = field(default_factory=dict)
    pool: object | None = None  # handle of the custom memory pool that the configuration names, or None
    # TorchAir's option -> path that the configuration names
    paths: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""  # where TorchAir works; it writes that down with static kernels and GE's cache
    # kind and index of the device that the module lies on; None where it has no index
    device: tuple[str, int] | None = None


class Written(Value):
    """Parts of a compile that TorchAir keeps, apart from the frame, which is the artifact's."""

    vendor: str  # the package that wrote it
    version: str  # of its cache file
    signature: str  # its text about graph, inputs and options, for people
    code: str  # its generated code, without what belongs to the process that compiled it
    # module's tensors that its graph takes before those of the call: name, whether a parameter
    parameters: tuple[tuple[str, bool], ...]
    constants: tuple[tuple[str, str], ...] = ()  # name and device type of each tensor constant
    packed: bytes = b""  # these, as engine ``graph`` keeps them

    def to_sections(self) -> dict[str, bytes]:
        """The artifact's sections."""
        about: dict[str, Any] = {name: getattr(self, name) for name in ("parameters", "vendor", "version")}
        sections = {"torchair.py": self.code.encode(), "torchair.txt": self.signature.encode()}
        if self.constants:
            about["constants"] = self.constants
            sections["constants"] = self.packed
        sections["torchair.json"] = json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
        return sections

    @classmethod
    def from_sections(cls, sections: Mapping[str, bytes]) -> Written:
        """Read the result of `to_sections`; raises `ArtifactCorrupt`."""
        try:
            about: dict[str, Any] = json.loads(sections["torchair.json"])
            constants = tuple((str(name), str(kind)) for name, kind in about.get("constants", ()))
            return cls(
                vendor=str(about["vendor"]),
                version=str(about["version"]),
                signature=sections["torchair.txt"].decode(),
                code=sections["torchair.py"].decode(),
                parameters=tuple((str(name), bool(flag)) for name, flag in about["parameters"]),
                constants=constants,
                packed=sections["constants"] if constants else b"",
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            msg = f"what is kept of TorchAir's file cannot be read ({error!r}); it is compiled again"
            raise ArtifactCorrupt(msg, where="torchair.json", why=repr(error)) from error


def portable(code: str, own: Own) -> str:
    """The code without what belongs to the process that compiled it.

    Raises `NotPortable`: it holds the address of an object, the number of a stream, or another device.
    """
    tree = ast.parse(code)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == "main")
    ]
    infos = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and _called(call) == _INFO]
    given = [(keyword.arg, keyword.value) for call in infos for keyword in call.keywords]
    for name, value in given:
        if name == "user_stream_info" and isinstance(value, ast.Dict) and value.keys:
            msg = (
                "the function runs on a stream that was made outside of it, which TorchAir writes down "
                "by its number in this process; name streams by npu_stream_switch, or use engine graph"
            )
            raise NotPortable(msg, what="stream")
    found = ast.unparse(_Portable(own, tree, given).visit(tree)) + "\n"
    if address := re.search(r"\bat 0x[0-9a-f]{6,}", found):
        msg = (
            f"TorchAir's code for this function holds an object's address ({address.group(0)}), so no later "
            "process could use it; use engine graph for this function"
        )
        raise NotPortable(msg, what="address")
    return found


class _Portable(ast.NodeTransformer):
    """Takes out of a syntax tree what belongs to this process; ``given`` describes the graph."""

    def __init__(self, own: Own, tree: ast.AST, given: list[tuple[str | None, ast.expr]]) -> None:
        self._own = own
        self._roles = {group: role for role, group in own.groups.items()}
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
        self._make_device_first(node)
        is_info = _called(node) == _INFO
        for keyword in node.keywords if is_info else ():
            if keyword.arg == "pool":
                keyword.value = ast.Constant(None)
            elif keyword.arg == "tagged_event_names":
                kept = [item for item in _texts(keyword.value) if item.value in self._used]
                keyword.value = ast.List(list(kept), ast.Load())
        self.generic_visit(node)
        for keyword in node.keywords if is_info else ():
            if isinstance(keyword.value, ast.Set):
                keyword.value.elts.sort(key=ast.unparse)
        return node

    def _make_device_first(self, node: ast.Call) -> None:
        kind, index = self._own.device or ("", 0)
        for item in _device_indices(node, kind):
            if item.value != index:
                other = f"{kind}:{item.value!r}"
                msg = (
                    f"the function makes tensors on {other}, and its module lies on {kind}:{index}; another "
                    "rank could not tell which device is meant. Make them where the module lies."
                )
                raise NotPortable(msg, what=other)
            item.value = 0

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
        if own.device is not None and value == f"{own.device[0]}:{own.device[1]}":
            return DEVICE
        is_own = bool(self._name) and (value == self._name or value in self._tags)
        return NAME + value[len(self._name) :] if is_own else value


def bound(written: Written, own: Own) -> str:
    """Portable code for this process; its constants are handed out once, by `held`.

    Raises:
        KeyError: it names a group or a path that this process has not.
        SyntaxError: it is none.
    """
    token = f"{next(_numbers)}"
    code = ast.unparse(_Bound(own, token).visit(ast.parse(written.code)))
    if written.constants:
        tensors = zip(written.constants, unpack_constants(written.packed), strict=True)
        _held[token] = SimpleNamespace(
            **{name: tensor.to(torch.device(kind)) for (name, kind), tensor in tensors}
        )
    return code


class _Bound(ast.NodeTransformer):
    """Puts what belongs to this process into a syntax tree."""

    def __init__(self, own: Own, token: str) -> None:
        self._own, self._token = own, token
        self._kind, self._index = own.device or ("", 0)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        for keyword in node.keywords:
            if self._own.pool is not None and keyword.arg == "pool" and _called(node) == _INFO:
                keyword.value = _expression(repr(self._own.pool))
        for item in _device_indices(node, self._kind):
            item.value = self._index
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
            node.value = f"{self._kind}:{self._index}"
        return node


def held(token: str) -> SimpleNamespace:
    """The constants of a load that is under way, as attributes."""
    return _held.pop(token)


def taken(code: str, serializer: Any) -> tuple[str, tuple[tuple[str, str], ...], bytes]:
    """Code without pickled constants, and these as `Written` has them.

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
        return code, (), b""
    module = serializer.rebuild_from_bytes(pickled.value).artifact
    assigned[_PICKLE].value = assigned[_REBUILT].value = ast.Constant(None)
    assigned[_MODULE].value = ast.Constant(_CONSTANTS)
    tensors = {name: getattr(module, name) for name in sorted(set(_attributes(tree)))}
    constants = tuple((name, tensor.device.type) for name, tensor in tensors.items())
    return ast.unparse(tree), constants, pack_constants(list(tensors.values()))


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
    kind, index = own.device or ("", 0)
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
