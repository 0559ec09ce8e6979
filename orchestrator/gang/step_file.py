"""What a rank is doing, in a small file that its node reads: native code that holds the GIL cannot hide it.

The file holds one line. It is written in place, a page at most, so that a reader sees the old line or the new
one, but for a moment in which it may see both mixed; it is for people, and nothing is decided by it.
"""

from __future__ import annotations

import os
from pathlib import Path

RENDEZVOUS = "start: rendezvous"
"""What a rank does that waits for others to come up."""

_SIZE_BYTES = 200


def step_file(log: Path) -> Path:
    """The file beside a rank's log."""
    return log.with_suffix(".step")


class StepFile:
    """Written by its rank; that it cannot be written is no reason to fail, because only people read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            self._descriptor = -1

    def note(self, doing: str) -> None:
        """Say what is being done now; nothing for idle."""
        if self._descriptor >= 0:
            line = doing.encode("ascii", "replace")[: _SIZE_BYTES - 1].ljust(_SIZE_BYTES - 1) + b"\n"
            try:
                os.pwrite(self._descriptor, line, 0)
            except OSError:
                self.close()

    def close(self) -> None:
        """Remove the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.unlink(missing_ok=True)


def read_step(path: Path) -> str:
    """What the rank says; empty where it says nothing."""
    try:
        with path.open("rb") as file:
            return file.read(_SIZE_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
