"""HTML that cannot be broken out of: every text is escaped where it enters, and only `Html` is not.

Host names, reasons and errors come from other machines; none of them may become a tag, a script or a link.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"meta", "br", "input", "col"})


class Html(str):
    """Text that is markup already; made by this module only, and from constants."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """The text as HTML; a character that is not printable comes out as a replacement character."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
    return Html(html.escape(text, quote=True))


def tag(name: str, /, *children: object, **attributes: str | bool | None) -> Html:
    """An element; children are `Html`, texts, or lists of both, and None is left out.

    An attribute's name loses a ``_`` at its end, and others become ``-``; True stands for itself, None and
    False for nothing.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None and value is not False:
            shown = key.rstrip("_").replace("_", "-")
            parts.append(f" {shown}" if value is True else f' {shown}="{escaped(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [join(children), f"</{name}>"]
    return Html("".join(parts))


def join(children: Iterable[object]) -> Html:
    """Several pieces as one."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escaped(child))
        elif isinstance(child, Iterable):
            parts.append(join(child))
        else:
            parts.append(escaped(str(child)))
    return Html("".join(parts))
