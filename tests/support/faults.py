"""Faults of calls to the operating system, and processes to meet them in."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.checkout import ROOT
from warmrank.cache_store.backends import directory
from warmrank.cache_store.steps import EVENT

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE", "ESTALE")
_PATH_EVENTS = frozenset(
    f"os.{name}"
    for name in (
        "link", "mkdir", "rename", "remove", "rmdir", "listdir", "scandir", "chmod", "utime", "truncate",
    )
)  # fmt: skip
# Calls that Python audits not at all; each takes a path or a descriptor first. (os.access only says no.)
_UNAUDITED = ("fsync", "stat", "lstat", "fstat", "copy_file_range", "sendfile", "write", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes wrong.

    Attributes:
        below: the directory whose files count.
        kill_at: end with SIGKILL at the nth time, from 1, that the step of that name is reached.
        kill_after: end as abruptly, by SIGALRM, so many seconds after the nth call, from 1, below ``below``.
        fail_call: the nth call, from 1, on files below ``below`` fails.
        error: with this error, by name.
        fail_on: and so do all calls after it.
        no_flock: flock says yes to everybody.
        clock_offset_s: the clock is off by so much.
    """

    below: str = "/nowhere"
    kill_at: tuple[str, int] | None = None
    kill_after: tuple[int, float] | None = None
    fail_call: int | None = None
    error: str = "EIO"
    fail_on: bool = False
    no_flock: bool = False
    clock_offset_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Tape:
    """What happened below a directory since the plan was installed.

    Attributes:
        steps: names of steps, as they were reached.
        calls: names of calls, as they were made.
    """

    plan: Plan
    steps: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, name: str) -> None:
        with self._lock:
            self.steps.append(name)
            nth = self.steps.count(name)
        if self.plan.kill_at == (name, nth):
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL)  # this thread does nothing more

    def call(self, name: str, place: Any) -> None:
        if not self._counts(place):
            return
        with self._lock:
            self.calls.append(name)
            number = len(self.calls)
        if self.plan.kill_after and number == self.plan.kill_after[0]:
            # Nothing handles that signal: the kernel ends the process, between any two instructions.
            signal.setitimer(signal.ITIMER_REAL, self.plan.kill_after[1])
        wanted = self.plan.fail_call
        if wanted is not None and (number == wanted or (self.plan.fail_on and number > wanted)):
            code = getattr(errno, self.plan.error)
            raise OSError(code, os.strerror(code), f"{name} {place}")

    def _counts(self, place: Any) -> bool:
        if isinstance(place, int):
            try:
                place = Path(f"/proc/self/fd/{place}").readlink()  # not audited, so no call of its own
            except OSError:
                return False
        return isinstance(place, (str, bytes, os.PathLike)) and os.fsdecode(place).startswith(self.plan.below)


def install(plan: Plan) -> Tape:
    """Let ``plan`` happen in this process from now on."""
    tape = Tape(plan=plan)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == EVENT:
            tape.step(arguments[0])
        elif event in _PATH_EVENTS or event == "open":
            tape.call(event, arguments[0])

    for name in _UNAUDITED:
        setattr(os, name, _counted(name, getattr(os, name), tape))
    _open_counted(tape)
    _sync_counted(tape)
    if plan.no_flock:
        fcntl.flock = lambda *arguments: None
    if plan.clock_offset_s:
        real_time, real_time_ns = time.time, time.time_ns
        time.time = lambda: real_time() + plan.clock_offset_s
        time.time_ns = lambda: real_time_ns() + int(plan.clock_offset_s * 1e9)
    sys.addaudithook(hook)
    return tape


def _counted(name: str, real: Callable[..., Any], tape: Tape) -> Callable[..., Any]:
    def call(place: Any, *arguments: Any, **options: Any) -> Any:
        tape.call(f"os.{name}", place)
        return real(place, *arguments, **options)

    return call


def _sync_counted(tape: Tape) -> None:
    real = directory._sync_file_system

    def sync(path: Path) -> None:
        tape.call("syncfs", path)
        real(path)

    directory._sync_file_system = sync


def _open_counted(tape: Tape) -> None:
    """Let reads, writes and closes of Python's own file objects fail too."""
    real = io.open

    class Counted(io.FileIO):
        def readinto(self, buffer: Any, /) -> int | None:
            tape.call("read", self.fileno())
            return super().readinto(buffer)

        def readall(self) -> bytes | None:  # type: ignore[override]
            tape.call("read", self.fileno())
            return super().readall()

        def write(self, data: Any, /) -> int | None:  # type: ignore[override]
            tape.call("write", self.fileno())
            return super().write(data)

    def open_counted(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode not in ("rb", "wb", "xb"):
            return real(file, mode, *arguments, **options)
        raw = Counted(file, mode)
        return io.BufferedReader(raw) if mode == "rb" else io.BufferedWriter(raw)

    io.open = builtins.open = open_counted


def forked(work: Callable[[], object]) -> int:
    """Start a fork of this process that does ``work`` and ends; its id. Status 1 says that it raised."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:  # noqa: BLE001 - the edge of a process; it is printed
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def telling(work: Callable[[], Any]) -> tuple[int, int]:
    """Start a fork that does ``work``; its id, and where what that returns can be read as JSON."""
    reader, writer = os.pipe()

    def answer() -> None:
        os.close(reader)
        said = work()
        with os.fdopen(writer, "w") as file:
            json.dump(said, file)

    pid = forked(answer)
    os.close(writer)
    return pid, reader


_TIME_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How the process of one trial ended.

    Attributes:
        exit: exit status, negative for a signal.
        overran: it was killed because its time was over.
        result: what the action returned.
        error: the `StoreError` that it raised.
        bug: any other exception.
        steps: steps that it reached.
        calls: calls that the plan counted.
    """

    exit: int
    overran: bool
    result: Any = None
    error: str | None = None
    bug: str | None = None
    steps: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


class Forker:
    """A `tests.support.fault_child` and the way to ask it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fault_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, action: str, plan: dict[str, Any] | None = None, *, time_s: float = _TIME_S, **arguments: Any
    ) -> Trial:
        """Run an action in a fork; arguments that are paths may be given as such."""
        trial = {"action": action, "arguments": arguments, "plan": plan or {}, "time_s": time_s}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(trial, default=str) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "tests.support.fault_child ended"
        return Trial(**json.loads(answer))

    def close(self) -> None:
        """End the process; its children ended with their trials."""
        self._process.communicate()


class Rooms:
    """Empty directories for one trial after another; each goes when the next one comes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fresh(self) -> Path:
        """An empty directory; the one before is gone."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        return self._root
