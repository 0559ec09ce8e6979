"""Environment variables that children of this process are to inherit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def inherited(name: str, value: str) -> Iterator[None]:
    """Set a variable for as long as the context lasts, for processes that are started inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
