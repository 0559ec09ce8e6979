"""Processes that tests start, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.checkout import PYTHONPATH
from warmrank.orchestrator import reaper
from warmrank.orchestrator.launch.report import Report, from_json


def running() -> dict[int, str]:
    """Process id and command line of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # gone meanwhile
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            found[int(path.parent.name)] = text
    return found


def marked(mark: str) -> dict[int, str]:
    """Process id and command line of every process with this text in its environment, but this one."""
    return {pid: text for pid, text in running().items() if pid != os.getpid() and mark in _environ(pid)}


def _environ(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""  # gone meanwhile, or another user's


def still_there(pids: Iterable[int], *, timeout_s: float = 30.0) -> list[int]:
    """Those of the processes that have not ended within the time-out; waits for each to end."""
    return [pid for pid in pids if not _ends(pid, timeout_s)]


def _ends(pid: int, timeout_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


_VARIABLE = "WARMRANK_TEST"
_FOREIGN = ("RAY_", "WARMRANK_")
ENDS_S = 40.0
"""Seconds in which all that a launch started must have ended, whatever happened to it."""


class LaunchProcess:
    """A launch that runs; started when it is made.

    Args:
        root: directory of its config, its report and what it says.
        data: its config.
        temp_dir: directory for temporary files, with a path short enough for sockets.
        environ: more environment variables.
        words: the command that runs before the launch's own, such as one that makes a mount namespace.
    """

    def __init__(
        self,
        root: Path,
        data: Mapping[str, Any],
        *,
        temp_dir: Path,
        environ: Mapping[str, str] | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.temp_dir = temp_dir
        self.config = root / "launch.yaml"
        self.config.write_text(yaml.safe_dump(dict(data)))
        self._json = root / "report.json"
        self._json.unlink(missing_ok=True)
        self._said = root / "said.log"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                (*words, *warmrank("launch", str(self.config), "--json", str(self._json))),
                cwd=root,
                env={**(environ or {}), **plain_environ(temp_dir), _VARIABLE: self.mark},
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def report(self) -> Report | None:
        """Its report; None where it wrote none."""
        return from_json(self._json.read_text()) if self._json.exists() else None

    def said(self) -> str:
        """What it said so far."""
        return self._said.read_text()

    def wait(self, *, timeout_s: float = 240.0) -> int:
        """Wait for its end; its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            msg = f"still running after {timeout_s:g} s:\n{self.said()}"
            raise AssertionError(msg) from None

    def report_of(self, exit_code: int) -> Report:
        """Wait for its end with this exit code; its report."""
        assert self.wait() == exit_code, self.said()
        report = self.report
        assert report is not None
        return report

    def processes(self) -> dict[int, str]:
        """Every process that it started and that runs, without itself: id and command line."""
        processes = reaper.table()
        # A process that gives itself a title may write it over its environment.
        users = {pid for pid, _ in reaper.users(processes, [str(self.temp_dir)])}
        own = users | marked(f"{_VARIABLE}={self.mark}").keys()
        return {pid: text for pid, text in running().items() if text and pid in own - {self.process.pid}}

    def of_ray(self, name: str) -> list[int]:
        """Processes of its own Ray by their program's name, such as ``raylet``."""
        found = {pid: text.split()[0] for pid, text in self.processes().items()}
        return [pid for pid, program in found.items() if program.endswith(f"/{name}")]

    def left_over(self) -> list[str]:
        """Processes and temporary files that are left when they have had time to go."""
        await_true(lambda: not self._left(), timeout_s=ENDS_S)
        return self._left()

    def end(self) -> None:
        """Take everything down."""
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[str]:
        names = [str(path) for path in self.temp_dir.glob("warmrank-*")]
        return [*(f"{pid} {text}" for pid, text in self.processes().items()), *names]


def warmrank(*words: str) -> tuple[str, ...]:
    """The command line of one of warmrank's commands."""
    return (sys.executable, "-u", "-m", "warmrank", *words)


def plain_environ(temp_dir: Path) -> dict[str, str]:
    """The environment of a command that joins no Ray unless its config says so."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**kept, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(temp_dir), "RAY_USAGE_STATS_ENABLED": "0"}


def await_true(found: Callable[[], object], *, timeout_s: float) -> bool:
    """Wait for something to become true; whether it has."""
    deadline = time.monotonic() + timeout_s
    while not found():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
