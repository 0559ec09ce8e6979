"""Which shapes ran once and are not captured yet.

A shape's first call runs the graph as it is: a shape that comes only once never pays for a capture, and the
first output of a process need not wait for one.

Invariant: memory is bounded. Shapes are kept as hashes; two shapes of one hash are harmless, because the
second of them is then captured at its first call, which is right as well.
"""

from __future__ import annotations

from collections.abc import Hashable

# A function that goes round through more shapes than this many times the limit captures none of them; with
# all that the limit allows it would have replayed at most one call in as many.
_SHAPES_PER_CAPTURE = 16


class FirstCalls:
    """The shapes of one function that ran once, the oldest first."""

    def __init__(self, limit: int) -> None:
        """As of a function of which nothing ran.

        Args:
            limit: captured graphs that the function may have.
        """
        self._most = max(1, limit * _SHAPES_PER_CAPTURE)
        self._ran: dict[int, None] = {}

    def __contains__(self, key: Hashable) -> bool:
        return hash(key) in self._ran

    def __len__(self) -> int:
        return len(self._ran)

    def add(self, key: Hashable) -> None:
        """Note that a shape ran; the oldest is forgotten where there are too many."""
        self._ran[hash(key)] = None
        if len(self._ran) > self._most:
            del self._ran[next(iter(self._ran))]

    def discard(self, key: Hashable) -> None:
        """Forget a shape: it is captured."""
        self._ran.pop(hash(key), None)
