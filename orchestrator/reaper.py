"""The reaper: a process beside ranks or a command that ends them with all that they started; run by its path.

Plain Python with few imports, so that it is up in 15 ms. It leaves its parent at once, because Ray ends the
children of an actor that ends; who waits for its end waits for the end of its stdout or socket. A process is
a pid and its start time, so a pid that was given away again is never killed, and nothing of another user is.
Time in which the reaper itself was held up is none of the lease.

``reaper.py ranks`` is handed commands, one JSON object a line, on stdin: ``{"guard": {pid: mark, ...},
"started": {pid: ticks since boot, ...}, "lease_s": seconds, "remove": [path, ...], "spare": [pid, ...]}``
names the ranks of an attempt (one whose start is not said is whatever has the pid now; ``"asked_s"`` beside
it replaces `_ASKED_S`, and ``"last": pid`` names who tells it all that), ``{"renew": true}`` says that its
driver lives, and ``{"end": true}`` that all is over. It ends all ranks, what descends from them, and itself

- when stdin ends: whoever started it is gone, and so is Ray on this node, or the driver;
- when the lease has run out: the driver cannot reach this node, and will start another attempt elsewhere;
- when all is over.

In the first two cases it also removes the directories that it was named, and first ends who has a file in
them open or names them on its command line, but for who is spared: with the directory of a Ray, that is the
Ray. When the lease has run out, whoever told it of the ranks ends last: it is of an attempt that is lost,
too.

A rank that is gone takes its own descendants with it, at once. They are found by the chain of parents, looked
at every `LOOK_S` while the rank lives, and, once it is gone, by the rank's mark in the environment that they
were started with, because a process whose parent died is another's child. Where the kernel lists children
(proc(5); it may be built without) a look costs what ranks have started, elsewhere a look at every process of
the machine. The list may lack one while another ends: hence the memory and the mark.

``reaper.py command FD LEASE_S GRACE_S COMMAND...`` runs a command. Each byte that comes through the socket
``FD`` is the number of a signal for the command's process group; SIGKILL kills everything, 0 only renews the
lease. It answers with the command's exit status, in digits, as its last act. When the socket closes, or stays
silent for ``LEASE_S``, the command gets a SIGTERM. After SIGTERM or SIGINT it has ``GRACE_S`` to end, then
all of it is killed. Descendants that are left when it ends are ended too, sessions of their own included: the
kernel gives orphans to the reaper (a "child subreaper", prctl(2)), which outlasts them all. If the reaper is
killed, the kernel sends the command a SIGTERM.
"""

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

_HELD_UP_S = 5.0  # A look that comes so late was held up: by a stop, a frozen container, a machine that moved

_ASKED_S = 2.0
"""Time for ranks that Ray was asked to end: to a kill it would say that a worker died by accident."""

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


def stat_of(pid: int) -> tuple[int, int, str] | None:
    """Parent, start time and state of a process; None for one that is not there."""
    fields = fields_of(pid)
    return (int(fields[1]), int(fields[19]), fields[0].decode()) if fields else None


def start_of(pid: int) -> int:
    """Start time of a process; for one that is not there, one that none has."""
    stat = stat_of(pid)
    return -1 if stat is None else stat[1]


def fields_of(pid: int) -> list[bytes]:
    """Fields of ``/proc/PID/stat`` after the command's name, from the state on; empty for no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - run with as few imports as there can be
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def table() -> dict[int, tuple[int, int]]:
    """Parent and start time of every process of this machine that runs."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        stat = stat_of(int(name)) if name.isdecimal() else None
        if stat is not None and stat[2] != "Z":
            found[int(name)] = stat[:2]
    return found


def runs(process: Process) -> bool:
    """True if a process is there, and no other has its pid."""
    stat = stat_of(process[0])
    return stat is not None and stat[1] == process[1] and stat[2] != "Z"


def children() -> Children:
    """Function that finds children: by the kernel's list, or, without one, by a look at all processes."""
    if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110 - as above
        return listed
    return scanned(table())


def scanned(processes: dict[int, tuple[int, int]]) -> Children:
    """Children by the parents that all processes name."""
    found: dict[int, list[Process]] = {}
    for pid, (parent, started) in processes.items():
        found.setdefault(parent, []).append((pid, started))
    return lambda pid: found.get(pid, [])


def listed(pid: int) -> list[Process]:
    """Children of a process that run, as the kernel lists them for each of its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []  # ended since
    found = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                pids = [int(word) for word in file.read().split()]
        except OSError:
            continue
        stats = [(child, stat_of(child)) for child in pids]
        found += [(child, stat[1]) for child, stat in stats if stat and stat[0] == pid and stat[2] != "Z"]
    return found


def below(children_of: Children, roots: set[int]) -> set[Process]:
    """Descendants of some pids, without these."""
    found: set[Process] = set()
    waiting = list(roots)
    while waiting:
        fresh = set(children_of(waiting.pop())) - found
        found |= fresh
        waiting += [pid for pid, _ in fresh]
    return {process for process in found if process[0] not in roots}


def marked(processes: dict[int, tuple[int, int]], marks: set[str]) -> set[Process]:
    """Processes started with one of the marks in their environment."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    found: set[Process] = set()
    for pid, (_, started) in processes.items():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if not wanted.isdisjoint(file.read().split(b"\0")):
                    found.add((pid, started))
        except OSError:
            continue  # ended since, or not this user's
    return found


def users(processes: dict[int, tuple[int, int]], directories: list[str]) -> set[Process]:
    """Processes with an open file below one of the directories, or one of them on their command line."""
    return {(pid, started) for pid, (_, started) in processes.items() if _uses(pid, directories)}


def _uses(pid: int, directories: list[str]) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            command = os.fsdecode(file.read())
        if any(directory in command for directory in directories):
            return True
        files = [_target(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208
    except OSError:
        return False  # ended since, or not this user's
    return any(file.startswith(f"{directory}/") for file in files for directory in directories)


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115
    except OSError:
        return ""  # closed since


def kill(processes: Iterable[Process], number: int = signal.SIGKILL) -> None:
    """Send processes a signal, unless their pid is another's by now."""
    for pid, started in processes:
        stat = stat_of(pid)
        if stat is not None and stat[1] == started and pid != os.getpid():
            try:
                os.kill(pid, number)
            except OSError:
                continue  # ended since, or not this user's


class RankReaper:
    """The ranks to end, and when."""

    def __init__(self) -> None:
        self.lease_s = float("inf")
        self.lease_ends_s = float("inf")
        self.last: set[Process] = set()
        self.remove: list[str] = []
        self._asked_s = _ASKED_S
        self._spared = {os.getpid()}
        self.is_over = False
        self._ranks: dict[int, int] = {}
        self._marks: dict[int, str] = {}
        self._below: dict[int, set[Process]] = {}

    def take(self, line: str) -> None:
        """Carry out a command."""
        command = json.loads(line)
        self.is_over = self.is_over or bool(command.get("end"))
        if "guard" in command:
            self.lease_s, self.remove = command["lease_s"], command["remove"]
            self._spared.update(command["spare"])
            self._asked_s = command.get("asked_s", _ASKED_S)
            self._marks = {int(pid): mark for pid, mark in command["guard"].items()}
            # One that is gone by now has no start time that fits: the first look ends what it left.
            self._ranks = {pid: start_of(pid) for pid in self._marks}
            self._ranks |= {int(pid): ticks for pid, ticks in command.get("started", {}).items()}
            self.last = {(pid, start_of(pid)) for pid in [command.get("last")] if pid is not None}
        self.lease_ends_s = time.monotonic() + self.lease_s

    def waited(self, seconds: float) -> None:
        """So long ago was the last look: time in which this process stood still is none of the lease."""
        if seconds > _HELD_UP_S:
            self.lease_ends_s += seconds - LOOK_S

    def look(self) -> None:
        """Remember who descends from whom; end what belongs to ranks that are gone."""
        if not self._ranks:
            return
        children_of = children()
        gone: set[int] = set()
        for pid, started in self._ranks.items():
            seen = {process for process in self._below.get(pid, ()) if runs(process)}
            roots = {root for root, _ in seen}
            if runs((pid, started)):
                roots.add(pid)
            else:
                gone.add(pid)
            self._below[pid] = seen | below(children_of, roots)
        if gone:
            left = marked(table(), {self._marks[pid] for pid in gone})
            kill(left.union(*(self._below.pop(pid) for pid in gone)))
            self._ranks = {pid: started for pid, started in self._ranks.items() if pid not in gone}

    def end(self) -> None:
        """End all ranks and all below them; and what nobody else is left to end."""
        polite_s = time.monotonic() + (self._asked_s if self.is_over else 0)
        # Whoever is told that all is over has asked Ray to end the ranks.
        while time.monotonic() < polite_s and any(map(runs, self._ranks.items())):
            self.look()
            time.sleep(0.02)
        # Both at least once, in a time of their own: on a busy machine one look at all processes takes long.
        deadline_s = time.monotonic() + _END_S
        while left := self._left():
            kill(left)
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.02)
        deadline_s = time.monotonic() + _END_S
        while self.remove and not self.is_over:
            # More than once: what is about to end may write there still.
            for path in self.remove:
                shutil.rmtree(path, ignore_errors=True)
            if time.monotonic() > deadline_s or not any(os.path.lexists(path) for path in self.remove):
                break
            time.sleep(0.2)

    def _left(self) -> set[Process]:
        processes = table()
        seen = set(self._ranks.items()).union(*self._below.values())
        found = {(pid, started) for pid, started in seen if processes.get(pid, (0, 0))[1] == started}
        found |= below(scanned(processes), {pid for pid, _ in found})
        found |= marked(processes, set(self._marks.values()))
        if self.remove and not self.is_over:
            found |= users(processes, self.remove)
        return {found_one for found_one in found if found_one[0] not in self._spared}


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
        if number in (signal.SIGINT, signal.SIGTERM):
            self._allow_grace()

    def _allow_grace(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s)

    def _descendants(self) -> set[Process]:
        return below(children(), {os.getpid()})


def reap_ranks() -> None:
    """Read commands until there is nothing left to guard, then end the ranks."""
    reaper, text = RankReaper(), ""
    os.set_blocking(0, False)
    looked_s = time.monotonic()
    while not reaper.is_over and time.monotonic() < reaper.lease_ends_s:
        if select.select([0], [], [], LOOK_S)[0]:
            chunk = os.read(0, 65536).decode()
            if not chunk:
                break
            *lines, text = (text + chunk).split("\n")
            for line in lines:
                reaper.take(line)
        reaper.look()
        before_s, looked_s = looked_s, time.monotonic()
        reaper.waited(looked_s - before_s)
    has_run_out = not reaper.is_over and time.monotonic() >= reaper.lease_ends_s
    reaper.end()
    if has_run_out:
        kill(reaper.last)


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
        remedy = "give a path, or a name that PATH of the node finds"
        problem = f"the command {words[0]!r} cannot be run on this node: {error.strerror}; {remedy}"
        sys.stderr.write(f"warmrank: {problem}\n")
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
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
        reap_ranks()
    else:
        reap_command(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit()
