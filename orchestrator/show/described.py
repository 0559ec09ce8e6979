"""Descriptions for a JSON Schema out of docstrings; pure.

A model's own is the first paragraph of its docstring, and a property's its line below ``Attributes:``.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

_ATTRIBUTE = re.compile(r"    (\w+): (.*)")
_MARKS = str.maketrans({"`": None})


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with descriptions for people in place of whole docstrings."""
    parts = {name: _with_words(part) for name, part in schema.get("$defs", {}).items()}
    return {**_with_words(schema), **({"$defs": parts} if parts else {})}


def _with_words(part: dict[str, Any]) -> dict[str, Any]:
    if "description" not in part:
        return part
    doc = inspect.cleandoc(part["description"])
    words = attributes(doc)
    known = part.get("properties", {})
    properties = {
        name: {**value, "description": words[name]} if name in words else value
        for name, value in known.items()
    }
    return {
        **part,
        "description": _one_line(doc.partition("\n\n")[0]),
        **({"properties": properties} if known else {}),
    }


def attributes(doc: str) -> dict[str, str]:
    """What a docstring, its indentation cleaned, says of each attribute; lines that go on are joined."""
    found: dict[str, str] = {}
    name = ""
    for line in doc.partition("Attributes:\n")[2].splitlines():
        if match := _ATTRIBUTE.fullmatch(line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("     "):
            found[name] += f" {line.strip()}"
        else:
            break
    return {name: _one_line(text) for name, text in found.items()}


def _one_line(text: str) -> str:
    return " ".join(text.translate(_MARKS).split())
