"""TorchAir's generated code, made equal in every process that compiles the same, and bound at a load.

TorchAir writes into it what belongs to one process only:

* ``pool=(0, 7)``: the handle of a custom memory pool; kept as ``pool=None``, and bound to this process's;
* ``fx_graph_name="graph_3"``, and tags of events that begin with it: a counter of the process; kept as
  ``graph_0``, and bound to a number of this process, because events are looked up by their tags;
* the directory that it works in: kept empty, and set by TorchAir's own loader;
* names of process groups: kept as `GROUP` and the group's role, and bound to this rank's name.

Nothing else is touched; places are found in the syntax tree, so text inside of strings is not mistaken.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Mapping

from worker.errors import NotPortable

GROUP = "warmrank group "
_NAME = "graph_0"
_NUMBERED = re.compile(r"graph_(\d+)")
_INFO = "AclGraphCacheInfo"
_numbers = itertools.count(1 << 20)  # far above those that TorchAir itself counts in this process

Edit = tuple[ast.expr, str]


def portable(code: str, roles: Mapping[str, str], directory: str) -> str:
    """The code without what belongs to this process.

    Args:
        code: as TorchAir generated it.
        roles: this process's name of a process group -> its role, for the groups that the graph uses.
        directory: where TorchAir worked; it writes that down with static kernels and GE's cache.

    Raises:
        NotPortable: it holds the address of an object.
    """
    tree = ast.parse(code)
    name = _graph_name(tree)
    edits: list[Edit] = []
    for call in _info_calls(tree):
        edits += [(keyword.value, "None") for keyword in call.keywords if keyword.arg == "pool"]
    for constant in _strings(tree):
        value = str(constant.value)
        if value.startswith(directory):
            edits.append((constant, "''"))
        elif name and _begins_with(value, name):
            edits.append((constant, repr(_NAME + value[len(name) :])))
    edits += [
        (node, repr(GROUP + roles[str(node.value)])) for node in _group_arguments(tree, roles.__contains__)
    ]
    found = _edited(code, edits)
    if address := re.search(r"\bat 0x[0-9a-f]{6,}", found):
        msg = (
            f"TorchAir's code for this function holds an object's address ({address.group(0)}), so no later "
            "process could use it; use engine graph for this function"
        )
        raise NotPortable(msg, what="address")
    return found


def bound(code: str, names: Mapping[str, str], pool: object | None) -> str:
    """Portable code for this process.

    Args:
        code: of `portable`.
        names: role -> this process's name of the process group.
        pool: handle of the custom memory pool that the configuration names, or None.
    """
    tree = ast.parse(code)
    name = f"graph_{next(_numbers)}"
    edits: list[Edit] = []
    if pool is not None:
        for call in _info_calls(tree):
            edits += [(keyword.value, repr(pool)) for keyword in call.keywords if keyword.arg == "pool"]
    for constant in _strings(tree):
        value = str(constant.value)
        if _begins_with(value, _NAME):
            edits.append((constant, repr(name + value[len(_NAME) :])))
        elif value.startswith(GROUP):
            edits.append((constant, repr(names[value.removeprefix(GROUP)])))
    return _edited(code, edits)


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
