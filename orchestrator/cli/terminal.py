"""The last step before a terminal: no text of another's document moves its cursor or changes its title.

Names in a store may be anybody's where nothing is signed. Invariants: every character that is not printable
comes out as a question mark, but for line feeds and tabs; styles and progress bars, which are ours, stay;
codes for colours that libraries write on their own are dropped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL = re.compile(r"[\x7f-\x9f]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def defused(text: str) -> str:
    """``text`` with a question mark for each character that is not printable; line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def defused_json(text: str) -> str:
    """JSON in which those control characters are escaped too that its grammar allows as they are."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class SafeConsole(Console):
    """A `Console` whose texts are defused."""

    def print(self, *objects: Any, **options: Any) -> None:
        """See `Console.print`; writes nothing for codes alone, such as colorama's reset at the end."""
        plain = tuple(_COLOURS.sub("", each) if isinstance(each, str) else each for each in objects)
        if plain == objects or any(plain):
            super().print(*plain, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`."""
        for segment in super().render(renderable, options):
            is_ours = segment.control or segment.text.isprintable()
            yield segment if is_ours else Segment(defused(segment.text), segment.style)


class SafeFormatter(logging.Formatter):
    """A `Formatter` whose lines are defused."""

    def format(self, record: logging.LogRecord) -> str:
        """See `Formatter.format`."""
        return defused(super().format(record))
