"""New processes; which are there by a mark in their environment, and whether a process is gone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed_by(module: str, *arguments: str, **environment: str) -> str:
    """What a module of the tests prints that runs in a new process; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def marked(mark: str) -> dict[int, str]:
    """Process id and command line of every process with this text in its environment, but this one."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone meanwhile, or another user's
        if mark.encode() in environ and int(path.name) != os.getpid():
            found[int(path.name)] = command
    return found


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
