"""The command's output on its way out: as it is from one node, line by line with names from several.

Invariant: whoever stops reading it (a pager, a stopped terminal) holds up the command, as in a shell, but not
the driver, which nodes would else take for gone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO

from warmrank.orchestrator.serve.command import Chunk, Stream

LONGEST_LINE = 1 << 16
"""Bytes of a line that are held back until its end comes; a progress bar or a binary file may have none."""


MOST_PENDING = 32 << 20
"""Bytes that wait for whoever reads; beyond that nodes keep what their commands print."""
_LOOK_S = 0.1


class Streams:
    """Writes what nodes print.

    Args:
        names: of the nodes, which stand before each line; none where there is but one.
        out: where standard output goes.
        err: where standard error goes.
    """

    def __init__(self, names: Iterable[str], out: BinaryIO, err: BinaryIO) -> None:
        listed = tuple(names)
        width = max(map(len, listed), default=0)
        self._prefixes = [f"{name:<{width}} | ".encode() for name in listed] if len(listed) > 1 else []
        self._files: Mapping[Stream, BinaryIO] = {"out": out, "err": err}
        self._begun: dict[tuple[int, Stream], bytes] = {}

    def write(self, node: int, chunks: Iterable[Chunk]) -> None:
        """Write what a node printed; where nodes are named, a line waits for its end unless it is long."""
        for stream, data in chunks:
            if not self._prefixes:
                self._put(stream, data)
                continue
            *lines, rest = (self._begun.pop((node, stream), b"") + data).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            if rest:
                self._begun[node, stream] = rest
            self._put(stream, b"".join(self._prefixes[node] + line + b"\n" for line in lines))

    def finish(self) -> None:
        """Write lines that never came to their end."""
        for (node, stream), rest in self._begun.items():
            self._put(stream, self._prefixes[node] + rest + b"\n")
        self._begun.clear()

    def _put(self, stream: Stream, data: bytes) -> None:
        if data:
            self._files[stream].write(data)
            self._files[stream].flush()


class Outlet:
    """Writes in a thread of its own.

    Args:
        streams: what it writes to.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._waiting: queue.SimpleQueue[tuple[int, Sequence[Chunk]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="exec-outlet", daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether more should not be written now."""
        return self._error is None and self._pending_bytes > MOST_PENDING

    def write(self, node: int, chunks: Sequence[Chunk]) -> None:
        """Have it written, without waiting; raises what an earlier call met with."""
        if self._error is not None:
            raise self._error
        self._add(sum(len(data) for _, data in chunks))
        self._waiting.put((node, chunks))

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Wait until all is written, or for the word that it is over; raises what the writing met with."""
        self.stop()
        while self._thread.is_alive() and not is_over():
            self._thread.join(_LOOK_S)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Write what there is, and no more."""
        self._waiting.put(None)

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                node, chunks = item
                self._streams.write(node, chunks)
                self._add(-sum(len(data) for _, data in chunks))
            self._streams.finish()
        except Exception as error:  # noqa: BLE001 - the thread's edge: raised where it is written to
            self._error = error

    def _add(self, num_bytes: int) -> None:
        with self._lock:
            self._pending_bytes += num_bytes
