"""The command's output on its way out: as it is from one node, line by line with names from several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import BinaryIO

from orchestrator.serve.command import Chunk, Stream

LONGEST_LINE = 1 << 16
"""Bytes of a line that are held back until its end comes; a progress bar or a binary file may have none."""


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
        """Write what a node printed; where nodes are named a line waits for its end, if it is not too long."""
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
