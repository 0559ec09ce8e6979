"""The parent of a user's command: a small program of its own, so that no process outlives whoever started it.

Run by path, with the standard library alone: ``python -IS keeper.py FD GRACE_S COMMAND...``. ``FD`` is a
socket. It takes lines ``signal NUMBER`` and ``kill``; its end, whatever the reason (the other side was
killed, say), means SIGTERM. It gives one JSON object per line: ``{"pid": N}`` or ``{"errno": N, "error":
TEXT}`` when the command started or did not, then ``{"ended": STATUS}``, its exit status as a shell has it.

Invariants: after a signal the command has ``GRACE_S`` to end, then everything below it is killed; what is
left of its descendants when it ends is ended too, sessions of their own included, because the kernel gives
orphans to this process (a "child subreaper", prctl(2)); it ends when no descendant is left, and not before.
Should this process itself be killed, the kernel sends the command a SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.05


def main(arguments: list[str]) -> int:
    """Keep one command; 0 when all of it has ended."""
    if os.fork():  # apart from who started this, too: Ray kills the children of an actor that ends
        os._exit(0)
    channel = socket.socket(fileno=int(arguments[0]))
    channel.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they come through the channel, in order
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = _started(arguments[2:])
    except OSError as error:
        _say(channel, {"errno": error.errno, "error": error.strerror})
        return 0
    _say(channel, {"pid": process.pid})
    keeper = Keeper(process.pid, channel, grace_s=float(arguments[1]))
    keeper.keep()
    _say(channel, {"ended": keeper.status})
    return 0


class Keeper:
    """Follows one command to its end.

    Args:
        pid: of the command, which leads a process group.
        channel: to whoever wants it.
        grace_s: how long it may take to end after a signal.
    """

    def __init__(self, pid: int, channel: socket.socket, *, grace_s: float) -> None:
        self.status = 0
        self._pid = pid
        self._channel = channel
        self._grace_s = grace_s
        self._has_ended = False
        self._is_heard = True
        self._kill_at = float("inf")
        self._text = b""
        self._told: set[int] = set()

    def keep(self) -> None:
        """Until the command and all its descendants have ended."""
        while self._reap():
            if self._is_heard:
                self._listen()
            else:
                time.sleep(_LOOK_S)
            if time.monotonic() >= self._kill_at:
                for pid in descendants(os.getpid()):
                    _send(pid, signal.SIGKILL)
            elif self._has_ended:
                self._end_rest()

    def _reap(self) -> bool:
        """Take the status of who ended; whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code
                self._has_ended = True
                self._allow_grace()
                self._end_rest()

    def _end_rest(self) -> None:
        """Tell what the command left behind, each once; some may have been started since the last look."""
        for pid in descendants(os.getpid()):
            if pid not in self._told:
                self._told.add(pid)
                _send(pid, signal.SIGTERM)

    def _allow_grace(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s)

    def _listen(self) -> None:
        readable, _, _ = select.select([self._channel], [], [], _LOOK_S)
        if not readable:
            return
        try:
            data = self._channel.recv(4096)
        except OSError:
            data = b""
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._obey(line.decode().split())
        if not data:
            self._is_heard = False
            self._signal(signal.SIGTERM)

    def _obey(self, words: list[str]) -> None:
        if words[0] == "kill":
            self._kill_at = time.monotonic()
        else:
            self._signal(int(words[1]))

    def _signal(self, number: int) -> None:
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, number)
        if number in (signal.SIGINT, signal.SIGTERM):
            self._allow_grace()


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, as /proc has it now."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        # The command's name stands in parentheses, and may hold some itself.
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(path.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def before() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # killed before the line above
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(command, process_group=0, preexec_fn=before)  # noqa: S603, PLW1509 - one thread


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the process group has to do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _say(channel: socket.socket, what: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        channel.sendall(json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
