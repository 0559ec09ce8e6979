"""Faults of calls to the operating system, and processes to meet them in."""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import io
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from warmrank.cache_store.backends import directory
from warmrank.cache_store.errors import StoreError
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


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.crowds", "tests.support.fault_actions"])


def tried(
    action: Callable[..., Any],
    plan: dict[str, Any] | None = None,
    *,
    time_s: float = _TIME_S,
    **arguments: Any,
) -> Trial:
    """A trial in a process of its own, forked from one that has no threads and opened no store.

    Args:
        action: what the plan happens to.
        plan: fields of a `Plan`.
        time_s: the process is killed after that long.
        arguments: of the action.
    """
    reader, writer = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_try, args=(writer, action, Plan(**(plan or {})), arguments))
    process.start()
    writer.close()
    said: dict[str, Any] = {}
    overran = not reader.poll(time_s)
    if overran:
        process.kill()
    else:
        with contextlib.suppress(EOFError):  # it was killed
            said = reader.recv()
    process.join()
    assert process.exitcode is not None
    return Trial(exit=process.exitcode, overran=overran, **said)


def _try(writer: Connection, action: Callable[..., Any], plan: Plan, arguments: dict[str, Any]) -> None:
    said: dict[str, Any] = {}
    tape = install(plan)
    try:
        said["result"] = action(**arguments)
    except StoreError as error:
        said["error"] = f"{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001 - the edge of a process; it is told
        said["bug"] = f"{type(error).__name__}: {error}"
        sys.excepthook(*sys.exc_info())
    said |= {"steps": tape.steps, "calls": tape.calls}
    tape.plan = Plan()  # the answer itself must get through
    writer.send(said)


class Rooms:
    """Empty directories for one trial after another; each goes when the next one comes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def fresh(self) -> Path:
        """An empty directory; the one before is gone."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        return self._root
