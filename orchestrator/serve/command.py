"""A user's command on this node, by way of its keeper (`orchestrator.serve.keeper`), a process of its own.

Invariants: whoever drops a `Command`, by dying too, ends the command and all below it; output that is taken
goes through pipes of bounded length, so a command that prints more than anybody reads waits, as in a shell.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from warmrank.orchestrator.errors import OrchestratorError
from warmrank.orchestrator.serve import keeper

NOT_EXECUTABLE = 126
NOT_FOUND = 127
KILLED = 128 + signal.SIGKILL
_START_S = 60.0
_LAST_S = 5.0
_CHUNK_BYTES = 1 << 16
_MAX_CHUNKS = 256

Stream = Literal["out", "err"]
Chunk = tuple[Stream, bytes]


class CannotRun(OrchestratorError):
    """The command could not be started.

    Attributes:
        exit_code: as a shell has it: 127 where there is no such program, 126 where it may not be run.
    """

    def __init__(self, program: str, reason: str, *, exit_code: int) -> None:
        self.exit_code = exit_code
        remedy = "give a path, or a name that PATH of the node finds"
        super().__init__(f"the command {program!r} cannot be run on this node: {reason}; {remedy}")


class Command:
    """One running command.

    Args:
        words: program and arguments.
        environ: its whole environment.
        grace_s: seconds from SIGTERM or SIGINT to SIGKILL.
        captured: take its output, to be had from `output`; otherwise it has this process's streams.

    Raises:
        CannotRun: there is no such program, or it may not be run.
    """

    def __init__(
        self, words: Sequence[str], *, environ: Mapping[str, str], grace_s: float, captured: bool
    ) -> None:
        self.status: int | None = None
        self._text = b""
        self._chunks: queue.Queue[Chunk] = queue.Queue(_MAX_CHUNKS)
        self._pumps: list[threading.Thread] = []
        self._channel, theirs = socket.socketpair()
        pipe = subprocess.PIPE if captured else None
        try:
            self._keeper = subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
                [
                    sys.executable,
                    "-IS",
                    str(Path(keeper.__file__)),
                    str(theirs.fileno()),
                    str(grace_s),
                    *words,
                ],
                env=dict(environ),
                stdin=subprocess.DEVNULL if captured else None,
                stdout=pipe,
                stderr=pipe,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()
        if captured:
            self._pump("out", self._keeper.stdout)
            self._pump("err", self._keeper.stderr)
        self._await_start(words[0])

    def poll(self, wait_s: float = 0.0) -> int | None:
        """The exit status once it and all below it have ended, as a shell has it; waits that long for it."""
        if self.status is None:
            self._listen(wait_s)
        return self.status

    def output(self) -> list[Chunk]:
        """What it printed since the last call, in order."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._chunks.get_nowait())
        return found

    @property
    def is_drained(self) -> bool:
        """Whether no more output comes than `output` has already."""
        return not any(pump.is_alive() for pump in self._pumps)

    def signal(self, number: int) -> None:
        """Send a signal to its process group; SIGTERM and SIGINT begin the grace period."""
        self._say(f"signal {number}")

    def kill(self) -> None:
        """Kill it and all below it now."""
        self._say("kill")

    def close(self, *, wait_s: float = 30.0) -> None:
        """Kill what is left of it, and wait for the end."""
        self.kill()
        deadline = time.monotonic() + wait_s
        while self.poll(0.1) is None and time.monotonic() < deadline:
            self.output()
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(1.0)

    def _await_start(self, program: str) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            said, *later = self._said(_START_S) or [{}]
            if said:
                self._keeper.wait()  # what was started has made the keeper itself, and ended
            if "pid" in said:
                self._note(later)  # a short command may have ended already
                return
            if said:
                self._ended()
                code = NOT_FOUND if said["errno"] == errno.ENOENT else NOT_EXECUTABLE
                raise CannotRun(program, said["error"], exit_code=code)
            if self.status is not None:
                break
        self._ended()
        raise CannotRun(program, "its keeper did not answer", exit_code=NOT_EXECUTABLE)

    def _listen(self, wait_s: float) -> None:
        self._note(self._said(wait_s))

    def _note(self, heard: Sequence[Mapping[str, Any]]) -> None:
        """Take the status from what the keeper said."""
        for said in heard:
            if "ended" in said:
                self.status = int(said["ended"])
                self._keeper.wait()
                self._outlast_keeper()

    def _outlast_keeper(self) -> None:
        """Until the keeper, whose last word that was, has ended too: its end closes the channel."""
        with contextlib.suppress(OSError):
            while select.select([self._channel], [], [], _LAST_S)[0] and self._channel.recv(4096):
                continue

    def _said(self, wait_s: float) -> list[dict[str, Any]]:
        """What the keeper says within that time; its own end without a word makes a status."""
        if not select.select([self._channel], [], [], wait_s)[0]:
            return []
        with contextlib.suppress(OSError):
            if data := self._channel.recv(4096):
                *lines, self._text = (self._text + data).split(b"\n")
                return [json.loads(line) for line in lines]
        self._keeper.wait()  # somebody killed it, and the kernel told the command
        self.status = KILLED
        return []

    def _ended(self) -> None:
        self._channel.close()
        self._keeper.wait()
        for pump in self._pumps:
            pump.join()

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._channel.sendall(f"{line}\n".encode())

    def _pump(self, stream: Stream, pipe: IO[bytes] | None) -> None:
        assert pipe is not None  # noqa: S101 - captured
        pump = threading.Thread(target=self._take, args=(stream, pipe), name=f"exec-{stream}", daemon=True)
        self._pumps.append(pump)
        pump.start()

    def _take(self, stream: Stream, pipe: IO[bytes]) -> None:
        with pipe:
            while data := os.read(pipe.fileno(), _CHUNK_BYTES):
                self._chunks.put((stream, data))
