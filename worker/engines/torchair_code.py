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

Nothing else is touched; places are found in the syntax tree, so text inside of strings is not mistaken.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import torch

from warmrank.worker.engines.graph import unpack_constants
from warmrank.worker.engines.graph_source import pack_constants
from warmrank.worker.errors import ArtifactCorrupt, NotPortable
from warmrank.worker.values import Value

Edit = tuple[ast.expr | ast.stmt, str]
"""Part of a syntax tree, and the text that takes its place."""


def edited(code: str, edits: Iterable[Edit]) -> str:
    """The code with parts of its syntax tree replaced, which must not overlap."""
    data = code.encode()  # columns count bytes of UTF-8
    lines = data.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    for node, text in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or node.col_offset)
        data = data[:start] + text.encode() + data[end:]
    return data.decode()


def calls_of(tree: ast.AST, name: str) -> list[ast.Call]:
    """Calls of a function that is named plainly."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def texts(tree: ast.AST) -> list[ast.Constant]:
    """String constants."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


NAME = "warmrank graph"
GROUP = "warmrank group "
PATH = "warmrank path "
DEVICE = "warmrank device"
_INFO = "AclGraphCacheInfo"
_OPTIONS = re.compile(r"^-+compile options-+$", re.MULTILINE)
_numbers = itertools.count(1 << 20)  # far above those that TorchAir itself counts in this process


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


def portable(code: str, own: Own) -> str:
    """The code without what belongs to the process that compiled it.

    Raises `NotPortable`: it holds the address of an object, the number of a stream, or another device.
    """
    functions = (node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef))
    code = edited(code, [(node, "pass") for node in functions if node.name == "main"])
    tree = ast.parse(code)
    _refuse_streams(tree)
    name, listed = _graph_name(tree), list(_info_values(tree, "tagged_event_names"))
    in_lists = {id(item) for value in listed for item in ast.walk(value)}
    others = [constant for constant in texts(tree) if id(constant) not in in_lists]
    listed_tags = (str(item.value) for value in listed for item in texts(value))
    # TorchAir made those that begin with the graph's name for it; of others, those that its code uses stay.
    tags = frozenset(tag for tag in listed_tags if name and tag.startswith(f"{name}_"))
    used = tags.union(str(constant.value) for constant in others)
    edits = [*_pools(tree, None), *_devices(tree, own)]
    for value in listed:
        kept = (str(item.value) for item in texts(value) if item.value in used)
        edits.append((value, repr([NAME + tag[len(name) :] if tag in tags else tag for tag in kept])))
    for constant in others:
        text = _portable_text(str(constant.value), name, tags, own)
        if text != constant.value:
            edits.append((constant, repr(text)))
    roles = {group: role for role, group in own.groups.items()}
    named = _group_arguments(tree, roles.__contains__)
    edits += [(node, repr(GROUP + roles[str(node.value)])) for node in named]
    found = edited(code, edits)
    found = edited(found, _sorted_sets(ast.parse(found)))
    if address := re.search(r"\bat 0x[0-9a-f]{6,}", found):
        msg = (
            f"TorchAir's code for this function holds an object's address ({address.group(0)}), so no later "
            "process could use it; use engine graph for this function"
        )
        raise NotPortable(msg, what="address")
    return found


def bound(code: str, own: Own) -> str:
    """Portable code for this process.

    Raises `KeyError`: it names a group or a path that this process has not.
    """
    tree = ast.parse(code)
    edits = [] if own.pool is None else _pools(tree, own.pool)
    kind, index = own.device or ("", 0)
    if own.device is not None:
        edits += [(node, repr(index)) for node in _device_indices(tree, kind)]
    name = f"graph_{next(_numbers)}"
    for constant in texts(tree):
        value = str(constant.value)
        if value.startswith(NAME):
            edits.append((constant, repr(name + value.removeprefix(NAME))))
        elif value.startswith(GROUP):
            edits.append((constant, repr(own.groups[value.removeprefix(GROUP)])))
        elif value.startswith(PATH):
            option, _, rest = value.removeprefix(PATH).partition(":")
            edits.append((constant, repr(own.paths[option] + rest)))
        elif value == DEVICE:
            edits.append((constant, repr(f"{kind}:{index}")))
    return edited(code, edits)


def portable_signature(text: str, own: Own) -> str:
    """TorchAir's description of a graph and its inputs, without files' paths and the options.

    The request has the options; here they would name pools and paths.
    """
    graph = _OPTIONS.split(text)[0]
    lines = (line for line in graph.splitlines() if not line.lstrip().startswith("# "))
    return "\n".join(_of_no_rank(line, own) for line in lines)


def roles_in(code: str) -> frozenset[str]:
    """The roles of process groups that portable code names."""
    values = (str(node.value) for node in texts(ast.parse(code)))
    return frozenset(value.removeprefix(GROUP) for value in values if value.startswith(GROUP))


def _of_no_rank(line: str, own: Own) -> str:
    if "c10d" in line:
        for role, name in own.groups.items():
            line = line.replace(repr(name), repr(GROUP + role))
    if own.device is not None:
        kind, index = own.device
        line = line.replace(f"device(type='{kind}', index={index})", f"device(type='{kind}')")
        line = line.replace(f"'{kind}:{index}'", f"'{kind}'")
    return line


def _portable_text(value: str, name: str, tags: frozenset[str], own: Own) -> str:
    if own.directory and _lies_in(value, own.directory):
        return ""
    for option, path in own.paths.items():
        if _lies_in(value, path):
            return f"{PATH}{option}:{value[len(path) :]}"
    if own.device is not None and value == f"{own.device[0]}:{own.device[1]}":
        return DEVICE
    return NAME + value[len(name) :] if value == name or value in tags else value


def _lies_in(value: str, path: str) -> bool:
    return value == path or value.startswith(path.rstrip(os.sep) + os.sep)


def _info_values(tree: ast.AST, keyword: str) -> Iterator[ast.expr]:
    """Values of a keyword of the calls that describe the graph."""
    for call in calls_of(tree, _INFO):
        yield from (item.value for item in call.keywords if item.arg == keyword)


def _graph_name(tree: ast.AST) -> str:
    """``graph_3``: the graph's name in this process; empty where nothing is captured."""
    found = [value for value in _info_values(tree, "fx_graph_name") if isinstance(value, ast.Constant)]
    return str(found[0].value) if found else ""


def _pools(tree: ast.AST, pool: object | None) -> list[Edit]:
    return [(value, repr(pool)) for value in _info_values(tree, "pool")]


def _devices(tree: ast.AST, own: Own) -> list[Edit]:
    """The rank's own device in calls of ``device``, as index 0; raises `NotPortable` for others."""
    if own.device is None:
        return []
    kind, index = own.device
    found = _device_indices(tree, kind)
    if other := [repr(node.value) for node in found if node.value != index]:
        msg = (
            f"the function makes tensors on {kind}:{other[0]}, and its module lies on {kind}:{index}; "
            "another rank could not tell which device is meant. Make them where the module lies."
        )
        raise NotPortable(msg, what=f"{kind}:{other[0]}")
    return [(node, "0") for node in found]


def _device_indices(tree: ast.AST, kind: str) -> list[ast.Constant]:
    """The index in each ``device(type=kind, index=...)``."""
    return [
        item.value
        for call in calls_of(tree, "device")
        if any(isinstance(item.value, ast.Constant) and item.value.value == kind for item in call.keywords)
        for item in call.keywords
        if item.arg == "index" and isinstance(item.value, ast.Constant)
    ]


def _sorted_sets(tree: ast.AST) -> list[Edit]:
    return [
        (item.value, ast.unparse(ast.Set(sorted(item.value.elts, key=ast.unparse))))
        for call in calls_of(tree, _INFO)
        for item in call.keywords
        if isinstance(item.value, ast.Set)
    ]


def _refuse_streams(tree: ast.AST) -> None:
    """Streams that the caller made himself are written down by their number in this process."""
    for value in _info_values(tree, "user_stream_info"):
        if isinstance(value, ast.Dict) and value.keys:
            msg = (
                "the function runs on a stream that was made outside of it, which TorchAir writes down "
                "by its number in this process; name streams by npu_stream_switch, or use engine graph"
            )
            raise NotPortable(msg, what="stream")


def _group_arguments(tree: ast.AST, is_group: Callable[[str], bool]) -> list[ast.Constant]:
    """Arguments of operators on process groups that are a group's name."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or "c10d" not in ast.unparse(node.func):
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        found += [
            item
            for item in arguments
            if isinstance(item, ast.Constant) and isinstance(item.value, str) and is_group(item.value)
        ]
    return found


_PICKLE, _MODULE = "serialized_gm", "fx_graph"
_REBUILT = "rebuild_gm"
_PLACE = "warmrank constants"
_held: dict[str, SimpleNamespace] = {}


class Constants(Value):
    """Constants of one graph."""

    names: tuple[tuple[str, str], ...]  # name and device type of each, in the order of the section
    section: bytes  # their bytes, as `worker.engines.graph` packs them


def taken(code: str, serializer: Any) -> tuple[str, Constants | None]:
    """Code without pickled constants, and these; None where it has none.

    Args:
        code: as TorchAir generated it, in this process.
        serializer: TorchAir's ``SerializableGraphModule``.
    """
    tree = ast.parse(code)
    assigned = {name: value for name, value in _assignments(tree) if name in (_PICKLE, _REBUILT, _MODULE)}
    pickled = assigned.get(_PICKLE)
    if not (isinstance(pickled, ast.Constant) and isinstance(pickled.value, bytes)):
        return code, None
    module = serializer.rebuild_from_bytes(pickled.value).artifact
    names = sorted(_attributes(tree))
    tensors = [getattr(module, name) for name in names]
    edits: list[Edit] = [(pickled, "None"), (assigned[_REBUILT], "None"), (assigned[_MODULE], repr(_PLACE))]
    constants = Constants(
        names=tuple((name, tensor.device.type) for name, tensor in zip(names, tensors, strict=True)),
        section=pack_constants(tensors),
    )
    return edited(code, edits), constants


def put_back(code: str, names: Sequence[tuple[str, str]], section: bytes) -> str:
    """Code that takes its constants from this process; they are handed out once."""
    token = f"{next(_numbers)}"
    tensors = unpack_constants(section)
    _held[token] = SimpleNamespace(
        **{name: tensor.to(torch.device(kind)) for (name, kind), tensor in zip(names, tensors, strict=True)}
    )
    places = [
        value
        for name, value in _assignments(ast.parse(code))
        if name == _MODULE and isinstance(value, ast.Constant) and value.value == _PLACE
    ]
    asking = f"__import__({__name__!r}, fromlist=['held']).held({token!r})"
    return edited(code, [(place, asking) for place in places])


def held(token: str) -> SimpleNamespace:
    """The constants of a load that is under way, as attributes."""
    return _held.pop(token)


def _assignments(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    return [
        (target.id, node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _attributes(tree: ast.Module) -> set[str]:
    """Names of the attributes that the code takes from the rebuilt module."""
    return {
        str(node.args[1].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == _MODULE
        and isinstance(node.args[1], ast.Constant)
    }


class Written(Value):
    """Parts of a compile that TorchAir keeps, apart from the frame, which is the artifact's."""

    vendor: str  # the package that wrote it
    version: str  # of its cache file
    signature: str  # its text about graph, inputs and options, for people
    code: str  # its generated code, without what belongs to the process that compiled it
    # module's tensors that its graph takes before those of the call: name, whether a parameter
    parameters: tuple[tuple[str, bool], ...]
    constants: Constants | None = None  # tensor constants of the graph; None where it has none

    def to_sections(self) -> dict[str, bytes]:
        """The artifact's sections."""
        about: dict[str, Any] = {
            "parameters": self.parameters,
            "vendor": self.vendor,
            "version": self.version,
        }
        sections = {"torchair.py": self.code.encode(), "torchair.txt": self.signature.encode()}
        if self.constants is not None:
            about["constants"] = self.constants.names
            sections["constants"] = self.constants.section
        sections["torchair.json"] = json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
        return sections

    @classmethod
    def from_sections(cls, sections: Mapping[str, bytes]) -> Written:
        """Read the result of `to_sections`; raises `ArtifactCorrupt`."""
        try:
            about: dict[str, Any] = json.loads(sections["torchair.json"])
            constants = None
            if "constants" in about:
                names = tuple((name, kind) for name, kind in about["constants"])
                constants = Constants(names=names, section=sections["constants"])
            return cls(
                vendor=str(about["vendor"]),
                version=str(about["version"]),
                signature=sections["torchair.txt"].decode(),
                code=sections["torchair.py"].decode(),
                parameters=tuple((str(name), bool(flag)) for name, flag in about["parameters"]),
                constants=constants,
            )
        except (LookupError, TypeError, ValueError) as error:
            msg = f"what is kept of TorchAir's file cannot be read ({error!r}); it is compiled again"
            raise ArtifactCorrupt(msg, where="torchair.json", why=repr(error)) from error
