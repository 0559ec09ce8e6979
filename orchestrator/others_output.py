"""Others' lines on their way to stderr: Ray tells on stdout, whatever it is told, who died, at length."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

MAX_OTHERS_LINE = 200
"""Characters of a line; Ray's have a thousand."""


class FoldedLines(io.TextIOBase):
    """A stream whose lines are cut to `MAX_OTHERS_LINE` characters on the way to another one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        """Pass whole lines on; the rest of one waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            self._stream.write("".join(f"{_folded(line)}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Pass on also a line that has not ended."""
        rest, self._rest = self._rest, ""
        if rest:
            self._stream.write(_folded(rest))
        self._stream.flush()

    def isatty(self) -> bool:
        """As the other stream says."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """As the other stream says."""
        return self._stream.fileno()


def _folded(line: str) -> str:
    if len(line) <= MAX_OTHERS_LINE:
        return line
    kept = line[:MAX_OTHERS_LINE].rpartition(" ")[0] or line[:MAX_OTHERS_LINE]
    return f"{kept} ... ({len(line) - len(kept)} characters more, with --debug)"


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send to stderr what libraries print: Ray tells on stdout, whatever it is told, who died.

    With ``--debug`` their lines are left whole.
    """
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        with redirect_stdout(sys.stderr):
            yield
        return
    folded = FoldedLines(sys.stderr)
    try:
        with redirect_stdout(folded):
            yield
    finally:
        folded.flush()
