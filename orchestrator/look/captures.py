"""The signature of a capture, for people: whole, with runs of equal shapes folded."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

_FORMAT = 1
"""Of what `worker.capture.plan` writes. That module needs torch, so the layout is read here again."""

_DIGEST_CHARS = 12


def short_signature(signature: str) -> str:
    """Shapes as lists, and runs of equal ones once, with their number.

    A capture plan is told in words; a text that only looks like one is given as it is.
    """
    if signature.startswith("{"):
        try:
            return _plan(json.loads(signature))
        except (ValueError, TypeError, KeyError):  # of a later version, say: nothing of it may be lost
            return signature
    parts = re.findall(r"[^\s,()\[\]]*\[[^\]]*\]|[^\s,()\[\]]+", signature.replace("torch.Size(", ""))
    return " ".join(_runs(parts))


def _plan(plan: dict[str, Any]) -> str:
    """``inputs 3-4: [2, 64] x2, [8, 8] strides [1, 8]; numbers 5: 32; artifact 80eb...``."""
    if plan["format"] != _FORMAT:
        raise ValueError(plan["format"])
    inputs = [(position, _tensor(*rest)) for position, *rest in plan["inputs"]]
    numbers = [(position, json.dumps(value)) for position, value in plan["numbers"]]
    parts = [
        _listed("input", inputs),
        _listed("number", numbers),
        f"artifact {plan['artifact'][:_DIGEST_CHARS]}",
    ]
    return "; ".join(part for part in parts if part)


def _tensor(sizes: list[int], strides: list[int] | None = None) -> str:
    return str(sizes) if strides is None else f"{sizes} strides {strides}"


def _listed(what: str, items: list[tuple[int, str]]) -> str:
    """Each value with its position; neighbours that are equal once."""
    found = []
    for text, run in itertools.groupby(items, key=lambda item: item[1]):
        positions = [position for position, _ in run]
        found.append(f"{_positions(positions)}: {text}")
    return f"{what if len(items) == 1 else what + 's'} {', '.join(found)}" if found else ""


def _positions(positions: list[int]) -> str:
    """``3``, ``3-5``, ``3-5 7``."""
    parts = []
    # Positions that follow each other are as far from the count as the first.
    for _, run in itertools.groupby(enumerate(positions), key=lambda pair: pair[1] - pair[0]):
        members = [position for _, position in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return " ".join(parts)


def _runs(parts: Iterable[str]) -> list[str]:
    runs = [(part, len(list(run))) for part, run in itertools.groupby(parts)]
    return [f"{part} x{count}" if count > 1 else part for part, count in runs]
