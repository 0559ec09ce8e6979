"""Converters that a user registered with ``torchair.register_fx_node_ge_converter``: state of the process.

They say what GE's graph has for an operator, in mode max-autotune.

What is relied on (torch_npu 2.13): a converter is the attribute ``_ge_converter`` of its ``OpOverload``, or
stands in ``torchair._ge_concrete_graph.fx2ge_converter._CONVERTERS``; it is a function around the user's, its
``__wrapped__``. ``torch.ops``, its namespaces and its operators keep what was looked up as attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from warmrank.worker.torch_private.registered_patterns import Digest, is_of_the_vendor

_REGISTRY = "torchair._ge_concrete_graph.fx2ge_converter"


def registered_converters(digest: Digest) -> list[str]:
    """Operator and digest of each converter that is not torch_npu's own; nothing where TorchAir is not.

    Args:
        digest: of functions.
    """
    registry = getattr(sys.modules.get(_REGISTRY), "_CONVERTERS", None)
    if registry is None:
        return []
    found = {operator: around for operator, around in registry.items() if around is not None}
    found |= dict(_of_operators())
    users = {
        operator: getattr(around, "__wrapped__", around)  # one layer: a user may wrap the vendor's
        for operator, around in found.items()
    }
    return sorted(
        f"{operator}={digest(function)}"
        for operator, function in users.items()
        if not is_of_the_vendor(function)
    )


def _of_operators() -> Iterator[tuple[Any, Any]]:
    for namespace in _parts(torch.ops, torch._ops._OpNamespace):
        for packet in _parts(namespace, torch._ops.OpOverloadPacket):
            for operator in _parts(packet, torch._ops.OpOverload):
                around = vars(operator).get("_ge_converter")
                if around is not None:
                    yield operator, around


def _parts(holder: Any, kind: type) -> list[Any]:
    return [part for part in list(vars(holder).values()) if isinstance(part, kind)]
