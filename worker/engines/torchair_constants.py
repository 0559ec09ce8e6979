"""Tensor constants of a graph: TorchAir pickles them into its code, with addresses; here they are a section.

At a compile they are taken out, by TorchAir's own function, of code that this process just made. At a load
the code asks `held` for them, so nothing of the store is ever unpickled.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from warmrank.worker.engines.graph import pack_constants, unpack_constants
from warmrank.worker.engines.torchair_edit import Edit, edited
from warmrank.worker.values import Value

_PICKLE, _MODULE = "serialized_gm", "fx_graph"
_REBUILT = "rebuild_gm"
_PLACE = "warmrank constants"
_numbers = itertools.count()
_held: dict[str, SimpleNamespace] = {}


class Constants(Value):
    """Constants of one graph.

    Attributes:
        names: name and device type of each, in the order of the section.
        section: their bytes, as `worker.engines.graph` packs them.
    """

    names: tuple[tuple[str, str], ...]
    section: bytes


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
