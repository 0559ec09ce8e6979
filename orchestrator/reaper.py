"""The reaper: a process beside ranks or a command that ends them with all that they started; run by its path.

Plain Python with few imports, so that it is up in 15 ms. It leaves its parent at once, because Ray ends the
children of an actor that ends; who waits for its end waits for the end of its stdout or socket. A process is
a pid and its start time, so a pid that was given away again is never killed, and nothing of another user is.
Time in which the reaper itself was held up is none of the lease.

``reaper.py ranks JSON`` guards the ranks of an attempt: ``{"marks": {pid: mark, ...}, "started": {pid: ticks
since boot, ...}, "lease": [seconds, last pid or null], "remove": [path, ...], "spare": [pid, ...], "asked_s":
seconds}``; one whose start is not said is whatever has the pid now. On stdin `RENEW` says that the driver
lives, `END` that all is over. It ends all ranks, what descends from them, and itself

- when stdin ends: whoever started it is gone, and so is Ray on this node, or the driver;
- when the lease has run out: the driver cannot reach this node, and will start another attempt elsewhere;
- when all is over; ranks that Ray was asked to end have ``asked_s`` first.

In the first two cases it also removes the directories that it was named, and first ends who has a file in
them open or names them on its command line, but for who is spared: with the directory of a Ray, that is the
Ray. When the lease has run out, ``last`` (who renews it) ends last: it is of an attempt that is lost, too.

A rank that is gone takes its own descendants with it, at once. They are found by the chain of parents, looked
at every `LOOK_S` while the rank lives, and, once it is gone, by the rank's mark in the environment that they
were started with, because a process whose parent died is another's child. Where the kernel lists children
(proc(5); it may be built without) a look costs what ranks have started, elsewhere a look at every process of
the machine. The list may lack one while another ends: hence the memory and the mark.

``reaper.py command FD LEASE_S GRACE_S COMMAND...`` runs a command. Each byte that comes through the socket
``FD`` is the number of a signal for the command's process group; SIGKILL kills everything, 0 only renews the
lease. It answers with the command's exit status, in digits, as its last act. When the socket closes, or stays
silent for ``LEASE_S``, the command gets a SIGTERM. After that, SIGINT or SIGHUP it has ``GRACE_S`` to end,
then all of it is killed. Descendants that are left when it ends are ended too, sessions of their own
included: the kernel gives orphans to the reaper (a "child subreaper", prctl(2)), which outlasts them all. If
the reaper is killed, the kernel sends the command a SIGTERM.
"""

# ruff: noqa: PTH110, PTH115, PTH123, PTH208 - run with as few imports as there can be

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable

LOOK_S = 1.0  # interval between looks for descendants of ranks, and at the ranks
MARK = "WARMRANK_RANK_MARK"
"""Variable that every rank sets to a text of its own, so that what it starts inherits it."""
RENEW, END = b"r", b"e"

_HELD_UP_S = 5.0  # A look that comes so late was held up: by a stop, a frozen container, a machine that moved
_END_S = 10.0
"""Time-out for ending processes, and then for removing; one that the kernel holds cannot be ended."""
_COMMAND_LOOK_S = 0.05
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_EXECUTABLE = 126
NOT_FOUND = 127

Process = tuple[int, int]  # A pid, and the ticks since boot at which it was started
Children = Callable[[int], list[Process]]  # gives the children of a pid


def fields_of(pid: int) -> list[bytes]:
    """Fields of ``/proc/PID/stat`` after the command's name, from the state on; empty for no such process."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def stat_of(pid: int) -> tuple[int, int]:
    """Parent and start time of a process; -1 for one that is not there, or has ended."""
    fields = fields_of(pid)
    return (int(fields[1]), int(fields[19])) if fields and fields[0] != b"Z" else (-1, -1)


def start_of(pid: int) -> int:
    """Start time of a process; for one that is not there, one that none has."""
    return stat_of(pid)[1]


def runs(process: Process) -> bool:
    """True if a process is there, and no other has its pid."""
    return start_of(process[0]) == process[1] != -1


def table() -> dict[int, tuple[int, int]]:
    """Parent and start time of every process of this machine that runs."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return {pid: stat for pid in pids if (stat := stat_of(pid)) != (-1, -1)}


def children() -> Children:
    """Function that finds children: by the kernel's list, or, without one, by a look at all processes."""
    return listed if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else scanned(table())


def scanned(processes: dict[int, tuple[int, int]]) -> Children:
    """Children by the parents that all processes name."""
    found: dict[int, list[Process]] = {}
    for pid, (parent, started) in processes.items():
        found.setdefault(parent, []).append((pid, started))
    return lambda pid: found.get(pid, [])


def listed(pid: int) -> list[Process]:
    """Children of a process that run, as the kernel lists them for each of its threads."""
    lists = (_read(f"/proc/{pid}/task/{thread}/children") for thread in _names(f"/proc/{pid}/task"))
    stats = [(int(child), stat_of(int(child))) for each in lists for child in each.split()]
    return [(child, started) for child, (parent, started) in stats if parent == pid]


def below(children_of: Children, roots: set[int]) -> set[Process]:
    """Descendants of some pids, without these."""
    found: set[Process] = set()
    waiting = list(roots)
    while waiting:
        fresh = set(children_of(waiting.pop())) - found
        found |= fresh
        waiting += [pid for pid, _ in fresh]
    return {process for process in found if process[0] not in roots}


def marked(processes: dict[int, tuple[int, int]], marks: Iterable[str]) -> set[Process]:
    """Processes started with one of the marks in their environment."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    return {
        (pid, started)
        for pid, (_, started) in processes.items()
        if not wanted.isdisjoint(_read(f"/proc/{pid}/environ").split(b"\0"))
    }


def users(processes: dict[int, tuple[int, int]], directories: list[str]) -> set[Process]:
    """Processes with an open file below one of the directories, or one of them on their command line."""
    return {(pid, started) for pid, (_, started) in processes.items() if _uses(pid, directories)}


def _uses(pid: int, directories: list[str]) -> bool:
    command = os.fsdecode(_read(f"/proc/{pid}/cmdline"))
    files = [_target(f"/proc/{pid}/fd/{name}") for name in _names(f"/proc/{pid}/fd")]
    return any(
        directory in command or any(file.startswith(f"{directory}/") for file in files)
        for directory in directories
    )


def _read(path: str) -> bytes:
    """A file of /proc; empty where the process has ended since, or is not this user's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def kill(processes: Iterable[Process], number: int = signal.SIGKILL) -> None:
    """Send processes a signal, unless their pid is another's by now."""
    for process in processes:
        if runs(process) and process[0] != os.getpid():
            with contextlib.suppress(OSError):  # ended since, or not this user's
                os.kill(process[0], number)


class RankReaper:
    """The ranks to end, and when; takes what stands in the module's JSON."""

    def __init__(
        self,
        *,
        marks: dict[str, str],
        started: dict[str, int],
        lease: tuple[float, int | None],
        remove: list[str],
        spare: list[int],
        asked_s: float,
    ) -> None:
        self._marks = {int(pid): mark for pid, mark in marks.items()}
        # One that is gone by now has no start time that fits: the first look ends what it left.
        self._ranks = {pid: start_of(pid) for pid in self._marks}
        self._ranks |= {int(pid): ticks for pid, ticks in started.items()}
        self._lease_s, last = lease
        self._last = {(pid, start_of(pid)) for pid in [last] if pid is not None}
        self._below: dict[int, set[Process]] = {}
        self._remove = remove
        self._spared = {os.getpid(), *spare}
        self._asked_s = asked_s

    def run(self) -> None:
        """Look at the ranks until there is nothing left to guard, then end them."""
        looked_s = time.monotonic()
        lease_ends_s = looked_s + self._lease_s
        while looked_s < lease_ends_s:
            if select.select([0], [], [], LOOK_S)[0]:
                said = os.read(0, 4096)
                if END in said:
                    self._remove = []
                    self._await_end()
                if END in said or not said:
                    break
                lease_ends_s = time.monotonic() + self._lease_s
            self.look()
            before_s, looked_s = looked_s, time.monotonic()
            if looked_s - before_s > _HELD_UP_S:
                lease_ends_s += looked_s - before_s - LOOK_S
        self._end()
        if looked_s >= lease_ends_s:
            kill(self._last)

    def look(self) -> None:
        """Remember who descends from whom; end what belongs to ranks that are gone."""
        if not self._ranks:
            return
        children_of = children()
        gone: set[int] = set()
        for pid, started in self._ranks.items():
            seen = {process for process in self._below.get(pid, ()) if runs(process)}
            roots = {root for root, _ in seen}
            (roots if runs((pid, started)) else gone).add(pid)
            self._below[pid] = seen | below(children_of, roots)
        if gone:
            left = marked(table(), [self._marks[pid] for pid in gone])
            kill(left.union(*(self._below.pop(pid) for pid in gone)))
            self._ranks = {pid: started for pid, started in self._ranks.items() if pid not in gone}

    def _await_end(self) -> None:
        """Leave ranks that Ray was asked to end their time: of a kill it would say that a worker died."""
        deadline_s = time.monotonic() + self._asked_s
        while time.monotonic() < deadline_s and any(map(runs, self._ranks.items())):
            self.look()
            time.sleep(0.02)

    def _end(self) -> None:
        """End all ranks and all below them; and what nobody else is left to end."""
        # Both at least once, in a time of their own: on a busy machine one look at all processes takes long.
        deadline_s = time.monotonic() + _END_S
        while left := self._left():
            kill(left)
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.02)
        deadline_s = time.monotonic() + _END_S
        while self._remove:
            for path in self._remove:
                shutil.rmtree(path, ignore_errors=True)
            if time.monotonic() > deadline_s or not any(map(os.path.lexists, self._remove)):
                break
            time.sleep(0.2)  # what is about to end may write there still

    def _left(self) -> set[Process]:
        processes = table()
        seen = set(self._ranks.items()).union(*self._below.values())
        found = {(pid, started) for pid, started in seen if processes.get(pid, (0, 0))[1] == started}
        found |= below(scanned(processes), {pid for pid, _ in found})
        found |= marked(processes, self._marks.values())
        if self._remove:
            found |= users(processes, self._remove)
        return {process for process in found if process[0] not in self._spared}


class CommandReaper:
    """Follows one command, which leads a process group; ``channel`` is a socket to whoever wants it."""

    def __init__(self, pid: int, channel: int, *, lease_s: float, grace_s: float) -> None:
        self._pid = pid
        self._channel: int | None = channel
        self._lease_s = lease_s
        self._lease_ends = time.monotonic() + lease_s
        self._grace_s = grace_s
        self._kill_at = float("inf")
        self._status: int | None = None
        self._terminated: set[Process] = set()

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
                kill(self._descendants())
            elif self._status is not None:  # some may have been started since the last look
                left = self._descendants() - self._terminated
                self._terminated |= left
                kill(left, signal.SIGTERM)
        return self._status or 0

    def _collect(self) -> bool:
        """Take the status of children that ended, adopted ones too; false when none is left."""
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    code = os.waitstatus_to_exitcode(found[1])
                    self._status = code if code >= 0 else 128 - code
                    self._allow_grace()
        except ChildProcessError:
            return False
        return True

    def _listen(self) -> None:
        if self._channel is None:
            time.sleep(_COMMAND_LOOK_S)
        elif select.select([self._channel], [], [], _COMMAND_LOOK_S)[0]:
            try:
                numbers = os.read(self._channel, 4096)
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
            with contextlib.suppress(ProcessLookupError):  # it ends at this moment
                os.killpg(self._pid, number)
        if number in _IGNORED:
            self._allow_grace()

    def _allow_grace(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s)

    def _descendants(self) -> set[Process]:
        return below(children(), {os.getpid()})


def reap_command(fd: str, lease_s: str, grace_s: str, *words: str) -> None:
    """Run a command to its end, and say its status."""
    import subprocess

    channel, reaper = int(fd), os.getpid()
    os.set_inheritable(channel, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def prepare_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != reaper:  # killed before the line above
            os._exit(1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)

    try:
        command = subprocess.Popen(words, process_group=0, preexec_fn=prepare_child)  # noqa: S603, PLW1509
    except OSError as error:
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        known = "give a path, or a name that PATH of the node finds"
        remedy = known if status == NOT_FOUND else "chmod +x it, and begin a script with #!"
        problem = f"the command {words[0]!r} cannot be run on this node: {error.strerror}; {remedy}"
        sys.stderr.write(f"warmrank: {problem}\n")
    else:
        limits = {"lease_s": float(lease_s), "grace_s": float(grace_s)}
        status = CommandReaper(command.pid, channel, **limits).run()
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(channel, str(status).encode())


def _prctl(option: int, value: int) -> None:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # not Linux: the process group has to do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main(mode: str, *arguments: str) -> None:
    """Leave the parent, and end with what there is to reap, not before."""
    if os.fork():
        os._exit(0)
    for number in _IGNORED:  # for a command they come through the channel, in order
        signal.signal(number, signal.SIG_IGN)
    if mode == "ranks":
        RankReaper(**json.loads(arguments[0])).run()
    else:
        reap_command(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit()
