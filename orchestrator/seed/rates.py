"""Bytes a second, from how many bytes were done at which moment."""

from __future__ import annotations

from collections import deque

SPAN_S = 10.0


class Rate:
    """The rate over the last `SPAN_S` seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, done_bytes: int) -> None:
        """At ``now_s``, ``done_bytes`` were done."""
        if self._seen and done_bytes < self._seen[-1][1]:
            self._seen.clear()  # begun again
        self._seen.append((now_s, done_bytes))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= SPAN_S:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float:
        """0 as long as nothing can be said."""
        if len(self._seen) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
