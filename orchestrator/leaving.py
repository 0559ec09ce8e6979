"""The end of a process that has a Ray without a head below it, or one that was interrupted as it began.

Ray's native threads would wait for the head for a minute, and then crash, or crash at once; so the process
ends without them.
"""

from __future__ import annotations

import os
import sys

_at_once: list[bool] = []


def leave_at_once_later() -> None:
    """From now on this process is to end without what its libraries would do at its end."""
    _at_once.append(True)


def leave_at_once_if_needed(code: object) -> None:
    """End this process with an exit code, as `sys.exit` takes it, if `leave_at_once_later` was called."""
    if _at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
