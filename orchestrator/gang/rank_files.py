"""A rank's log, and the files beside it that its node reads: its current step, and its threads' stacks.

Stacks are written by `faulthandler` from a signal handler in C and steps in place, so native code that holds
the GIL hides neither. A rank that is stopped, or killed by SIGKILL, writes nothing.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

RENDEZVOUS = "start: rendezvous"  # work of a rank that waits for others to come up
SIGNAL = signal.SIGRTMIN + 7  # asks a rank where it stands; one that nobody else uses

_STEP_BYTES = 200
_WAIT_S = 2.0
_TICK_S = 0.05
_MOST_BYTES = 16_000
_MOST_LAUNCHES = 10
_LAUNCH = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")
_CRASH = re.compile(r"^Fatal Python error: (.*)", re.MULTILINE)


def launch_directory() -> str:
    """The name of a new launch's directory of logs; names sort by time."""
    return time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + uuid.uuid4().hex[:4]


def logs_of(cache_dir: Path, name: str, launch: str, attempt: int) -> str:
    """Pattern of the ranks' log files: a directory for each launch, names of their own for each attempt."""
    again = f".attempt{attempt}" if attempt > 1 else ""
    return str(cache_dir / ".logs" / name / launch / f"rank*{again}.log")


def drop_old_logs(directory: Path) -> None:
    """Remove the logs of all but the newest launches of one name."""
    with suppress(OSError):
        launches = sorted(path for path in directory.iterdir() if _LAUNCH.fullmatch(path.name))
        for path in launches[:-_MOST_LAUNCHES]:
            shutil.rmtree(path, ignore_errors=True)


def step_file(log: Path) -> Path:
    """The file with a rank's step."""
    return log.with_suffix(".step")


class StepFile:
    """Written by its rank; that it cannot be written is no reason to fail, because only people read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            self._descriptor = -1

    def note(self, doing: str) -> None:
        """Say what is being done now; nothing for idle."""
        if self._descriptor >= 0:
            line = doing.encode("ascii", "replace")[: _STEP_BYTES - 1].ljust(_STEP_BYTES - 1) + b"\n"
            try:
                os.pwrite(self._descriptor, line, 0)
            except OSError:
                self.close()

    def close(self) -> None:
        """Remove the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.unlink(missing_ok=True)


def stacks_file(log: Path) -> Path:
    """The file with a rank's stacks."""
    return log.with_suffix(".stacks")


def record_stacks(path: Path) -> None:
    """Have this process write there; it cannot be undone, and lasts as long as the process."""
    with suppress(OSError):
        # faulthandler keeps the number alone: closed, it might become another file's.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        faulthandler.enable(descriptor)
        faulthandler.register(SIGNAL, descriptor)


def ask_stacks(files: Mapping[int, Path]) -> None:
    """Have processes write where their threads stand; returns when all have, or after a while."""
    before = {path: len(read_bytes(path)) for path in files.values()}
    for pid in files:
        with suppress(OSError):
            os.kill(pid, SIGNAL)
    deadline = time.monotonic() + _WAIT_S
    sizes: dict[Path, int] = {}
    while time.monotonic() < deadline:
        time.sleep(_TICK_S)
        found = {path: len(read_bytes(path)) for path in before}
        if found == sizes and all(found[path] > before[path] for path in before):
            break
        sizes = found


def read_bytes(path: Path) -> bytes:
    """Contents of a file; empty where there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def read_stacks(path: Path) -> str:
    """The text of a file of stacks, its end where that is much."""
    return read_bytes(path)[-_MOST_BYTES:].decode("utf-8", "replace")


def read_step(path: Path) -> str:
    """The rank's own words; empty for none."""
    return read_bytes(path).decode("ascii", "replace").strip()


def crash_in(text: str) -> str:
    """The fault that a process ended with, such as ``Segmentation fault``; empty for none."""
    found = _CRASH.search(text)
    return found.group(1).strip() if found else ""
