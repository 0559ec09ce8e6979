"""Runs a command under a reaper: a process beside it that ends everything below it.

`ReapedCommand` runs this file by its path, ``python -IS reaper.py PSUTIL FD LEASE_S GRACE_S COMMAND...``, and
holds the other end of the socket ``FD``. (``PSUTIL`` is the directory that psutil is imported from.) Each
byte that it sends is the number of a signal for the command's process group; SIGKILL kills everything, 0 only
renews the lease. The reaper answers with the command's exit status, in digits, as its last act.

Invariants: when the socket closes, for whatever reason, or stays silent for ``LEASE_S``, the command gets a
SIGTERM. After SIGTERM or SIGINT it has ``GRACE_S`` to end, then all of it is killed. What is left of its
descendants when it ends is ended too, sessions of their own included: the kernel gives orphans to the reaper
(a "child subreaper", prctl(2)), which outlasts them all. If the reaper is killed, the kernel sends the
command a SIGTERM. A command that prints more than is read waits, as in a shell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

if __name__ == "__main__":  # isolated from the user's environment, so psutil's place has to be given
    sys.path.append(sys.argv.pop(1))

import psutil

NOT_EXECUTABLE = 126
NOT_FOUND = 127
KILLED = 128 + signal.SIGKILL

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.05
_HELD_UP_S = 5.0  # a look that comes so late was held up: by a stop, a frozen container
_CLOSE_S = 30.0
_CHUNK_BYTES = 1 << 16
_MAX_CHUNKS = 128

Stream = Literal["out", "err"]
Chunk = tuple[Stream, bytes]


class ReapedCommand:
    """One running command.

    Args:
        words: program and arguments.
        environ: its whole environment.
        grace_s: seconds from SIGTERM or SIGINT to SIGKILL.
        lease_s: seconds without a `poll` after which it is ended; None for no limit.
        captured: take its output, which `poll` returns; otherwise it has this process's streams.
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
        psutil_place = str(Path(psutil.__file__).parents[1])
        limits = [str(float("inf") if lease_s is None else lease_s), str(grace_s)]
        try:
            subprocess.run(  # noqa: S603 - it is for this; returns at once, the reaper leaves its parent
                [sys.executable, "-IS", __file__, psutil_place, str(theirs.fileno()), *limits, *words],
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

        Args:
            wait_s: how long to wait for either.
            reads: take output; otherwise it stays where it is, and so there is no status before it is read.

        Returns:
            Its output, in order. Its exit status as a shell has it, once all of it has ended and was read.
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
        with contextlib.suppress(OSError):  # it has ended
            self._channel.send(bytes([number]), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Kill what is left of it, and wait for the end."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + _CLOSE_S
        while self.poll(_LOOK_S)[1] is None and time.monotonic() < deadline:
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


class Reaper:
    """Follows one command to its end, in a process of its own.

    Args:
        command: leads a process group.
        channel: to whoever wants it.
        lease_s: how long that may be silent.
        grace_s: how long the command may take to end after a signal.
    """

    def __init__(
        self, command: subprocess.Popen[bytes], channel: socket.socket, *, lease_s: float, grace_s: float
    ) -> None:
        self._pid = command.pid
        self._channel: socket.socket | None = channel
        self._lease_s = lease_s
        self._lease_ends = time.monotonic() + lease_s
        self._grace_s = grace_s
        self._kill_at = float("inf")
        self._status: int | None = None
        self._terminated: set[psutil.Process] = set()

    def run(self) -> int:
        """Return the command's exit status once it and all its descendants have ended."""
        while self._collect():
            before = time.monotonic()
            self._listen()
            if (held_up_s := time.monotonic() - before) > _HELD_UP_S:
                self._lease_ends += held_up_s
            if time.monotonic() >= self._lease_ends:
                self._lease_ends = float("inf")
                self._signal(signal.SIGTERM)
            if time.monotonic() >= self._kill_at:
                send(psutil.Process().children(recursive=True), signal.SIGKILL)
            elif self._status is not None:  # some may have been started since the last look
                left = set(psutil.Process().children(recursive=True)) - self._terminated
                self._terminated |= left
                send(left, signal.SIGTERM)
        return self._status or 0

    def _collect(self) -> bool:
        """Take the status of children that ended, adopted ones too; false when none is left."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    code = os.waitstatus_to_exitcode(found[1])
                    self._status = code if code >= 0 else 128 - code
                    self._allow_grace()
            return True
        return False

    def _listen(self) -> None:
        if self._channel is None:
            time.sleep(_LOOK_S)
        elif wait([self._channel], _LOOK_S):
            try:
                numbers = self._channel.recv(4096)
            except OSError:
                numbers = b""
            self._lease_ends = time.monotonic() + self._lease_s
            for number in numbers or [signal.SIGTERM]:
                self._signal(number)
            if not numbers:
                self._channel, self._lease_ends = None, float("inf")

    def _signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._kill_at = time.monotonic()
        elif number and self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, number)
        if number in (signal.SIGINT, signal.SIGTERM):
            self._allow_grace()

    def _allow_grace(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s)


def send(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to processes that are still there and may be sent one."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def main(fd: str, lease_s: str, grace_s: str, *words: str) -> None:
    """Run a command as its reaper."""
    if os.fork():  # apart from who started this: Ray kills the children of an actor that ends
        os._exit(0)
    channel = socket.socket(fileno=int(fd))
    channel.set_inheritable(False)
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they come through the channel, in order
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    reaper = os.getpid()

    def prepare_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != reaper:  # killed before the line above
            os._exit(1)
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)

    try:
        command = subprocess.Popen(words, process_group=0, preexec_fn=prepare_child)  # noqa: S603, PLW1509
    except OSError as error:
        remedy = "give a path, or a name that PATH of the node finds"
        problem = f"the command {words[0]!r} cannot be run on this node: {error.strerror}; {remedy}"
        sys.stderr.write(f"warmrank: {problem}\n")
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    else:
        status = Reaper(command, channel, lease_s=float(lease_s), grace_s=float(grace_s)).run()
    with contextlib.suppress(OSError):  # nobody listens any more
        channel.sendall(str(status).encode())


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the process group has to do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
