"""Runs one script on each of many hosts side by side, each within its time; the only I/O of this room.

Invariants: no host holds up another, however long it is silent; when this returns, or is interrupted, no
process that it started on this machine is left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from warmrank.orchestrator.cluster.host_side import ANSWER

logger = logging.getLogger(__name__)

_AT_ONCE = 64
_TAIL_LINES = 12
_AFTER_KILL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A script for one host.

    Attributes:
        host: name of the host.
        connect: words of the command that runs a shell there.
        script: what the shell gets on its standard input.
        timeout_s: seconds until it is given up.
        keys: what an answer says, unless it says that something failed.
    """

    host: str
    connect: tuple[str, ...]
    script: str
    timeout_s: float
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from a host.

    Attributes:
        host: name of the host.
        values: what the host said; empty where it said nothing that can be read.
        trouble: what went wrong; empty where nothing did.
        lines: the last lines of its output, where something went wrong before it could say so.
        silent: whether it did not answer at all, so that what runs there is not known.
    """

    host: str
    values: Mapping[str, Any]
    trouble: str = ""
    lines: tuple[str, ...] = ()
    silent: bool = False


Listener = Callable[[Answer], None]


def run_all(errands: tuple[Errand, ...], *, on_answer: Listener = lambda _: None) -> tuple[Answer, ...]:
    """Run scripts side by side; answers are in the errands' order; ``on_answer`` gets them as they come."""
    if not errands:
        return ()
    running = _Running()
    pool = ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(errands)))
    try:
        futures = {pool.submit(_run, errand, running): errand.host for errand in errands}
        found = {}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            on_answer(future.result())
        return tuple(found[errand.host] for errand in errands)
    finally:
        running.end()
        pool.shutdown(wait=True, cancel_futures=True)


class _Running:
    """Processes that run now, so that an interrupt ends them; none starts afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def start(self, words: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._over:
                return None
            process = subprocess.Popen(  # noqa: S603 - the user's own command
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which then ends them
            )
            self._processes.add(process)
            return process

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        with self._lock:
            self._over = True
            for process in self._processes:
                kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, with the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _run(errand: Errand, running: _Running) -> Answer:
    try:
        process = running.start(errand.connect)
    except OSError as error:
        return Answer(
            host=errand.host, values={}, trouble=f"{errand.connect[0]}: {error.strerror}", silent=True
        )
    if process is None:
        return Answer(host=errand.host, values={}, trouble="interrupted", silent=True)
    try:
        output, _ = process.communicate(errand.script.encode(), errand.timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(process)
        trouble = f"no answer within {errand.timeout_s:g} s"
        return Answer(host=errand.host, values={}, trouble=trouble, lines=_tail(_rest(process)), silent=True)
    finally:
        running.ended(process)
    return read_answer(errand.host, output.decode(errors="replace"), process.returncode, keys=errand.keys)


def _rest(process: subprocess.Popen[bytes]) -> str:
    """What a process wrote before it was killed; nothing where one of its children keeps the pipe open."""
    try:
        output, _ = process.communicate(timeout=_AFTER_KILL_S)
    except subprocess.TimeoutExpired as expired:
        output = expired.output or b""
    return str(output.decode(errors="replace"))


def read_answer(host: str, output: str, code: int, *, keys: tuple[str, ...] = ()) -> Answer:
    """What a host's output says: the last line that is an answer, else what went wrong and the last lines."""
    for line in reversed(output.splitlines()):
        if line.startswith(ANSWER):
            values = _values(line.removeprefix(ANSWER), keys)
            if values is None:
                trouble = "its answer cannot be read"
                return Answer(host=host, values={}, trouble=trouble, lines=_tail(output), silent=True)
            trouble, _, rest = values.pop("failed", "").partition("\n")
            unknown = values.pop("unknown", False) is True
            return Answer(host=host, values=values, trouble=trouble, lines=_tail(rest), silent=unknown)
    trouble = f"the command that connects ended with {code}"
    return Answer(host=host, values={}, trouble=trouble, lines=_tail(output), silent=True)


def _values(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """An answer's values; None where it is cut off, or not what a host is asked for."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("failed", ""), str):
        return None
    return values if "failed" in values or all(key in values for key in keys) else None


def _tail(text: str) -> tuple[str, ...]:
    lines = [line.rstrip() for line in text.splitlines()]
    return tuple([line for line in lines if line][-_TAIL_LINES:])
