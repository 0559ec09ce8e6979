"""States of a process that a change names: used by the stale matrix and by the tests of staleness."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """No gradients, and another default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.no_grad():
        yield
    torch.set_default_dtype(before)


@contextlib.contextmanager
def both(*contexts: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Several context managers, entered in order."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
