"""A bandwidth limit: at most so many bytes a second, over all threads of one process.

A token bucket, kept as the moment at which all bytes taken so far are paid for (the generic cell rate
algorithm, ITU-T I.371). Invariants: bytes are paid for after they came, so a chunk larger than the bucket
passes and the next one waits longer; over any span it lets through no more than rate * (span + `BURST_S`) and
one chunk of each thread. Who takes no more than `piece_bytes` at once is never silent for long, however low
the limit is, so nobody takes it for stuck.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PIECE_S = 1.0
_LEAST_PIECE = 4096
BURST_S = 0.25
"""What was not used for so long may be made up for; more would come in bursts that others feel."""


class Pace:
    """Makes whoever takes bytes wait, so that all together stay within the limit.

    Args:
        bytes_per_s: the limit, more than 0.
        clock: seconds, never going back.
        sleep: waits for so many seconds.

    Attributes:
        piece_bytes: about what the limit lets through in `PIECE_S`.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a limit is more than 0 bytes a second, not {bytes_per_s}")
        self.bytes_per_s = bytes_per_s
        self.piece_bytes = max(_LEAST_PIECE, int(bytes_per_s * PIECE_S))
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_s = clock() - BURST_S

    def take(self, num_bytes: int) -> None:
        """Wait until ``num_bytes`` that just came are paid for."""
        with self._lock:
            now_s = self._clock()
            self._paid_s = max(self._paid_s, now_s - BURST_S) + num_bytes / self.bytes_per_s
            wait_s = self._paid_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)
