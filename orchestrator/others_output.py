"""Others' lines on their way to stderr: Ray tells on stdout, whatever it is told, who died, at length."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

_MAX_CHARS = 200
"""Characters of a line; Ray's have a thousand."""


class _FoldedLines:
    """Stderr, but for lines that are cut to `_MAX_CHARS` characters."""

    def __init__(self) -> None:
        self._stream, self._rest = sys.stderr, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Pass whole lines on; the rest of one waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            is_long = len(line) > _MAX_CHARS
            cut = textwrap.shorten(line, _MAX_CHARS, placeholder=" ... (all of it with --debug)")
            self._stream.write(f"{cut if is_long else line}\n")
        return len(text)


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send to stderr what libraries print on stdout; with ``--debug`` their lines are left whole."""
    stream: Any = sys.stderr if logging.getLogger().isEnabledFor(logging.DEBUG) else _FoldedLines()
    with redirect_stdout(stream):
        yield
