"""TorchAir's generated code, made equal in every process that compiles the same, and bound at a load.

TorchAir writes into it what belongs to one process only:

* ``pool=(0, 7)``: the handle of a custom memory pool; kept as ``pool=None``, and bound to this process's;
* ``fx_graph_name="graph_3"``, and tags of events that begin with it: a counter of the process; kept as
  ``graph_0``, and bound to a number of this process, because events are looked up by their tags;
* the directory that it works in: kept empty, and set by TorchAir's own loader;
* paths of the configuration, those of dumps with the rank in them: kept as `PATH` and the option's name;
* sets of labels, in the order of this process's hashes: kept sorted;
* names of process groups: kept as `GROUP` and the group's role, and bound to this rank's name.

Nothing else is touched; places are found in the syntax tree, so text inside of strings is not mistaken.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import field

from worker.errors import NotPortable
from worker.values import Value

GROUP = "warmrank group "
PATH = "warmrank path "
_NAME = "graph_0"
_NUMBERED = re.compile(r"graph_(\d+)")
_INFO = "AclGraphCacheInfo"
_OPTIONS = re.compile(r"^-+compile options-+$", re.MULTILINE)
_numbers = itertools.count(1 << 20)  # far above those that TorchAir itself counts in this process

Edit = tuple[ast.expr, str]


class Own(Value):
    """What belongs to one process.

    Attributes:
        groups: role -> this process's name of the process group.
        pool: handle of the custom memory pool that the configuration names, or None.
        paths: TorchAir's option -> path that the configuration names.
        directory: where TorchAir works; it writes that down with static kernels and GE's cache.
    """

    groups: Mapping[str, str] = field(default_factory=dict)
    pool: object | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""


def portable(code: str, own: Own) -> str:
    """The code without what belongs to the process that compiled it.

    Raises:
        NotPortable: it holds the address of an object, or the number of a stream.
    """
    tree = ast.parse(code)
    _refuse_streams(tree)
    edits = _pools(tree, None)
    name = _graph_name(tree)
    for constant in _strings(tree):
        text = _portable_text(str(constant.value), name, own)
        if text != constant.value:
            edits.append((constant, repr(text)))
    roles = {group: role for role, group in own.groups.items()}
    for node in _group_arguments(tree, roles.__contains__):
        edits.append((node, repr(GROUP + roles[str(node.value)])))
    found = _edited(code, edits)
    found = _edited(found, _sorted_sets(ast.parse(found)))  # with the names that their labels have by now
    if address := re.search(r"\bat 0x[0-9a-f]{6,}", found):
        msg = (
            f"TorchAir's code for this function holds an object's address ({address.group(0)}), so no later "
            "process could use it; use engine graph for this function"
        )
        raise NotPortable(msg, what="address")
    return found


def _portable_text(value: str, name: str, own: Own) -> str:
    if own.directory and value.startswith(own.directory):
        return ""
    for option, path in own.paths.items():
        if value.startswith(path):
            return f"{PATH}{option}:{value[len(path) :]}"
    return _NAME + value[len(name) :] if name and _begins_with(value, name) else value


def bound(code: str, own: Own) -> str:
    """Portable code for this process.

    Raises:
        KeyError: it names a group or a path that this process has not.
    """
    tree = ast.parse(code)
    edits = [] if own.pool is None else _pools(tree, own.pool)
    name = f"graph_{next(_numbers)}"
    for constant in _strings(tree):
        value = str(constant.value)
        if _begins_with(value, _NAME):
            edits.append((constant, repr(name + value[len(_NAME) :])))
        elif value.startswith(GROUP):
            edits.append((constant, repr(own.groups[value.removeprefix(GROUP)])))
        elif value.startswith(PATH):
            option, _, rest = value.removeprefix(PATH).partition(":")
            edits.append((constant, repr(own.paths[option] + rest)))
    return _edited(code, edits)


def portable_signature(text: str) -> str:
    """What TorchAir says of a graph and its inputs, without files' paths, and without the options.

    The request has the options; here they would name pools and paths.
    """
    graph = _OPTIONS.split(text)[0]
    return "\n".join(line for line in graph.splitlines() if not line.lstrip().startswith("# "))


def _sorted_sets(tree: ast.AST) -> list[Edit]:
    return [
        (item.value, ast.unparse(ast.Set(sorted(item.value.elts, key=ast.unparse))))
        for call in _info_calls(tree)
        for item in call.keywords
        if isinstance(item.value, ast.Set)
    ]


def _refuse_streams(tree: ast.AST) -> None:
    """Streams that the caller made himself are written down by their number in this process."""
    for call in _info_calls(tree):
        for item in call.keywords:
            if item.arg == "user_stream_info" and isinstance(item.value, ast.Dict) and item.value.keys:
                msg = (
                    "the function runs on a stream that was made outside of it, which TorchAir writes down "
                    "by its number in this process; name streams by npu_stream_switch, or use engine graph"
                )
                raise NotPortable(msg, what="stream")


def _pools(tree: ast.AST, pool: object | None) -> list[Edit]:
    calls = _info_calls(tree)
    return [(item.value, repr(pool)) for call in calls for item in call.keywords if item.arg == "pool"]


def roles_in(code: str) -> frozenset[str]:
    """The roles of process groups that portable code names."""
    values = (str(node.value) for node in _strings(ast.parse(code)))
    return frozenset(value.removeprefix(GROUP) for value in values if value.startswith(GROUP))


def _begins_with(value: str, name: str) -> bool:
    """``graph_1`` begins ``graph_1`` and ``graph_1_tag``, and not ``graph_10``."""
    return value.startswith(name) and not value[len(name) : len(name) + 1].isdigit()


def _strings(tree: ast.AST) -> list[ast.Constant]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _info_calls(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == _INFO
    ]


def _graph_name(tree: ast.AST) -> str:
    for call in _info_calls(tree):
        for keyword in call.keywords:
            if keyword.arg == "fx_graph_name" and isinstance(keyword.value, ast.Constant):
                name = str(keyword.value.value)
                return name if _NUMBERED.fullmatch(name) else ""
    return ""


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


def _edited(code: str, edits: list[Edit]) -> str:
    """The code with some expressions replaced, each on one line; everything else byte by byte as it was."""
    lines = code.splitlines(keepends=True)
    for node, text in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):
        assert node.end_lineno == node.lineno and node.end_col_offset is not None  # noqa: S101, PT018 - generated
        line = lines[node.lineno - 1].encode()  # columns count bytes of UTF-8
        lines[node.lineno - 1] = (
            line[: node.col_offset] + text.encode() + line[node.end_col_offset :]
        ).decode()
    return "".join(lines)
