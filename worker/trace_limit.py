"""How often a function is traced in one process before it runs eagerly where no variant fits.

A function that counts its own calls, or is called with another fixed shape each time, would be compiled on
every call for ever. Results are eager's from then on: slow, never wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch

_log = logging.getLogger("torchair")

# As many as a cache directory keeps of one function, and as many graphs as are captured by default.
MAX_TRACES = 64
# Of a function that writes to what its own conditions hang on. torch.compile gives up after 8 recompilations.
MAX_TRACES_OF_CHANGING = 16


class TraceLimit:
    """Counts the traces of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._traces = 0
        self._reason = ""
        self._warned = False
        self.reached = False

    def count(self, reason: str, *, changes_itself: bool) -> None:
        """Note one trace.

        Args:
            reason: why it was needed.
            changes_itself: the function writes to Python state that its conditions hang on.
        """
        self._traces += 1
        self._reason = reason
        self.reached = self._traces >= (MAX_TRACES_OF_CHANGING if changes_itself else MAX_TRACES)

    def run_eagerly(self, method: MethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The method's own result, without gradients, as a cached function's; warns once."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s was traced %d times in this process, so it runs eagerly from now on where nothing that "
                "is loaded fits; the last trace was needed because: %s. Use dynamic=True for changing "
                "shapes, and keep what changes from call to call in a tensor, or pass it.",
                self._name,
                self._traces,
                self._reason,
            )
        with torch.no_grad():
            return method(*args, **kwargs)
