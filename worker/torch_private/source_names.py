"""Names of inputs: Dynamo's, and a reader's."""

from __future__ import annotations

import re

_LOCAL = re.compile(r"\bL\['([^']*)'\]")


def readable(text: str) -> str:
    """Dynamo's names of arguments as a reader would write them: ``x`` for ``L['x']``."""
    return _LOCAL.sub(r"\1", text)
