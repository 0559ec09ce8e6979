"""Starts reapers (`orchestrator.reaper`), and talks to them: of ranks, and of the user's command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Literal

from warmrank.orchestrator import reaper

KILLED = 128 + signal.SIGKILL

# Isolated and without site packages; -E and -s go with -I.
_REAPER = (sys.executable, "-I", "-S", str(reaper.__file__))
_POLL_S = 0.05
_CLOSE_S = 30.0
_CHUNK_BYTES = 1 << 16
_MAX_CHUNKS = 128
_FOR_EVER_S = 1e9

Stream = Literal["out", "err"]
Chunk = tuple[Stream, bytes]


class ReapedCommand:
    """One running command, with its whole environment.

    It has ``grace_s`` from SIGTERM or SIGINT to SIGKILL, and is ended ``lease_s`` without a `poll`, if that
    is given. Its output, unless it is ``captured`` and `poll` returns it, goes to this process's streams.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        environ: Mapping[str, str],
        grace_s: float,
        lease_s: float | None = None,
        captured: bool,
    ) -> None:
        self._status = KILLED  # unless the reaper says otherwise before its end
        self._channel, theirs = socket.socketpair()
        self._sources: dict[int, Stream | Literal["status"]] = {self._channel.fileno(): "status"}
        stdout = stderr = None
        if captured:
            (out, stdout), (err, stderr) = os.pipe(), os.pipe()
            self._sources |= {out: "out", err: "err"}
        limits = [str(float("inf") if lease_s is None else lease_s), str(grace_s)]
        try:
            subprocess.run(  # noqa: S603 - it is for this; returns at once, the reaper leaves its parent
                [*_REAPER, "command", str(theirs.fileno()), *limits, *words],
                env=dict(environ),
                stdin=subprocess.DEVNULL if captured else None,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                check=True,
            )
        finally:
            for given in filter(None, (theirs.detach(), stdout, stderr)):
                os.close(given)

    def poll(self, wait_s: float = 0.0, *, reads: bool = True) -> tuple[list[Chunk], int | None]:
        """Renew the lease, and return what the command printed since, and its exit status.

        The status is as a shell has it, once all of it has ended and was read. Output that is not read stays
        where it is, so there is no status before it is.
        """
        self.signal(0)
        chunks: list[Chunk] = []
        for _ in range(_MAX_CHUNKS):
            wanted = [source for source, what in self._sources.items() if reads or what == "status"]
            ready = [source for source in wait(wanted, wait_s) if isinstance(source, int)]
            wait_s = 0.0
            for source in ready:
                self._read(source, chunks)
            if not ready:
                break
        return chunks, None if self._sources else self._status

    def signal(self, number: int) -> None:
        """Send a signal to its process group; SIGKILL kills it and all below it."""
        with suppress(OSError):  # it has ended
            self._channel.send(bytes([number]), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Kill what is left of it, and wait for the end."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + _CLOSE_S
        while self.poll(_POLL_S)[1] is None and time.monotonic() < deadline:
            continue
        self._channel.close()

    def _read(self, source: int, chunks: list[Chunk]) -> None:
        what = self._sources[source]
        try:
            data = os.read(source, _CHUNK_BYTES)
        except ConnectionResetError:  # the reaper ended before it read all
            data = b""
        if not data:
            del self._sources[source]
            if what != "status":
                os.close(source)
        elif what == "status":
            self._status = int(data)
        else:
            chunks.append((what, data))


class ReapedRanks:
    """A reaper of ranks, by pid with their marks: it guards them as long as this process lives, and is told.

    Args:
        marks: the mark of each process that it guards.
        started: when each was started, in ticks since boot, where that is known: a pid given away again is
            spared.
        lease: after how many seconds of silence it ends them, and, last, which process, if any.
        remove: directories that go, with who uses them, when nobody else is left to remove them.
        spare: processes that use these and must not be ended.
        asked_s: how long it leaves processes that were asked to end, by default as long as Ray needs.
    """

    def __init__(
        self,
        marks: Mapping[int, str],
        *,
        started: Mapping[int, int] | None = None,
        lease: tuple[float, int | None] = (_FOR_EVER_S, None),
        remove: Iterable[str] = (),
        spare: Iterable[int] = (),
        asked_s: float = 2.0,
    ) -> None:
        told = {
            "marks": dict(marks),
            "started": dict(started or {}),
            "lease": lease,
            "remove": list(remove),
            "spare": list(spare),
            "asked_s": asked_s,
        }
        # It has no file of this process open: that may lie in a directory which another reaper removes with
        # who uses it.
        process = subprocess.Popen(  # noqa: S603 - as above
            [*_REAPER, "ranks", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101 - they are pipes
        assert process.stdout is not None  # noqa: S101
        self._stdin, self._stdout = process.stdin, process.stdout
        process.wait()  # not for its end: it has left

    def renew(self) -> None:
        """Begin the lease anew; raises `BrokenPipeError` if it was killed itself."""
        self._stdin.write(reaper.RENEW)

    def end(self) -> None:
        """End what it guards, and itself; the directories stay. Returns when nothing is left."""
        with suppress(BrokenPipeError):  # killed itself, so it guards nothing any more
            self._stdin.write(reaper.END)
        self.abandon()

    def abandon(self) -> None:
        """Have it do what it does when this process is gone; returns when nothing is left."""
        self._stdin.close()
        if not self._stdout.closed:
            self._stdout.read()
            self._stdout.close()
