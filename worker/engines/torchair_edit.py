"""Replacing expressions in generated code; everything else stays byte by byte as it was."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

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
