"""A process beside others that ends what they leave behind; plain Python, run by its path.

It is handed commands, one JSON object a line, on stdin: ``{"guard": {pid: mark, ...}, "started": {pid:
ticks since boot, ...}, "lease_s": seconds, "remove": [path, ...], "spare": [pid, ...]}`` names the ranks of
an attempt (one whose start is not said is whatever has the pid now), ``{"renew": true}`` says that its driver
lives, and ``{"end": true}`` that all is over. (``"asked_s"`` beside ``"guard"`` replaces `_ASKED_S`.) It ends
all ranks, what descends from them, and itself

- when stdin ends: whoever started it is gone, and so is Ray on this node, or the driver;
- when the lease has run out: the driver cannot reach this node, and will start another attempt elsewhere;
- when all is over.

In the first two cases it also removes the directories that it was named, which nobody else is left to do, and
first ends who has a file in them open or names them on its command line, but for who is spared: with the
directory of a Ray, that is the Ray. The launch's own Ray has a guardian for that, its ranks have another.

A rank that is gone takes its own descendants with it, at once. They are found by the chain of parents, looked
at every `LOOK_S` while the rank lives, and by the rank's mark in the environment that they were started with,
because a process whose parent died is another's child. A process is a pid and its start time, so a pid that
was given away again is never killed.

It leaves its parent at once, because Ray ends the children of an actor that ends; whoever waits for its end
waits for the end of its stdout.

Invariants: kills nothing of another user, and nothing but descendants of the ranks that it was named, and
users of the directories.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time

LOOK_S = 1.0
"""How often descendants are looked for, and whether the ranks live."""

MARK = "WARMRANK_RANK_MARK"
"""Variable that every rank sets to a text of its own, so that what it starts inherits it."""

_HELD_UP_S = 5.0
"""A look that comes so late was held up: by a stop, a frozen container, a machine that moved."""

_ASKED_S = 2.0
"""How long ranks have that Ray was asked to end: to a kill it would say that a worker died by accident."""

_END_S = 10.0
"""How long it is tried to end processes; one that the kernel holds cannot be ended at all."""

Process = tuple[int, int]
"""A pid, and the ticks since boot at which it was started."""


def stat_of(pid: int) -> tuple[int, int, str] | None:
    """Parent, start time and state of a process; None for one that is not there."""
    fields = fields_of(pid)
    return (int(fields[1]), int(fields[19]), fields[0].decode()) if fields else None


def fields_of(pid: int) -> list[bytes]:
    """What ``/proc/PID/stat`` says after the command's name, from the state on; empty for no such process."""
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


def descendants(processes: dict[int, tuple[int, int]], roots: set[int]) -> set[Process]:
    """All below some pids, without these."""
    return below(processes, children_of(processes), roots)


def children_of(processes: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    """The children of every process that has some."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    return children


def below(
    processes: dict[int, tuple[int, int]], children: dict[int, list[int]], roots: set[int]
) -> set[Process]:
    """As `descendants`, where the children are known."""
    found: set[Process] = set()
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if (pid, processes[pid][1]) not in found:
                found.add((pid, processes[pid][1]))
                waiting.append(pid)
    return found


def marked(processes: dict[int, tuple[int, int]], marks: set[str]) -> set[Process]:
    """All that were started with one of the marks in their environment."""
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
    """All that have a file below one of the directories open, or name one on their command line."""
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


def kill(processes: set[Process]) -> None:
    """End processes, unless their pid is another's by now."""
    for pid, started in processes:
        stat = stat_of(pid)
        if stat is not None and stat[1] == started and pid != os.getpid():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # ended since, or not this user's


class Guardian:
    """What is guarded, and until when."""

    def __init__(self) -> None:
        self.lease_s = float("inf")
        self.lease_ends_s = float("inf")
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
            processes = table()
            # One that is gone by now has no start time that fits: the first look ends what it left.
            self._ranks = {pid: processes.get(pid, (0, -1))[1] for pid in self._marks}
            self._ranks |= {int(pid): ticks for pid, ticks in command.get("started", {}).items()}
        self.lease_ends_s = time.monotonic() + self.lease_s

    def waited(self, seconds: float) -> None:
        """So long ago was the last look: time in which this process stood still is none of the lease."""
        if seconds > _HELD_UP_S:
            self.lease_ends_s += seconds - LOOK_S

    def look(self) -> None:
        """Remember who descends from whom; end what belongs to ranks that are gone."""
        processes = table()
        children = children_of(processes)
        for pid in self._ranks:
            self._below[pid] = self._below.get(pid, set()) | below(processes, children, {pid})
        for pid in [pid for pid, started in self._ranks.items() if processes.get(pid, (0, 0))[1] != started]:
            del self._ranks[pid]
            kill(self._below.pop(pid) | marked(processes, {self._marks[pid]}))

    def end(self) -> None:
        """End all ranks and all below them; and what nobody else is left to end."""
        deadline_s = time.monotonic() + _END_S
        polite_s = time.monotonic() + (self._asked_s if self.is_over else 0)
        while time.monotonic() < polite_s and self._alive():
            self.look()
            time.sleep(0.02)
        while (left := self._left(table())) and time.monotonic() < deadline_s:
            kill(left)
            time.sleep(0.02)
        while self.remove and not self.is_over and time.monotonic() < deadline_s:
            # More than once: what is about to end may write there still.
            for path in self.remove:
                shutil.rmtree(path, ignore_errors=True)
            if not any(os.path.lexists(path) for path in self.remove):
                break
            time.sleep(0.2)

    def _alive(self) -> bool:
        """Whether a rank is there that the driver has asked Ray to end."""
        stats = [(stat_of(pid), started) for pid, started in self._ranks.items()]
        return any(stat is not None and stat[2] != "Z" and stat[1] == started for stat, started in stats)

    def _left(self, processes: dict[int, tuple[int, int]]) -> set[Process]:
        ranks = set(self._ranks.items())
        seen = ranks.union(*self._below.values())
        found = {(pid, started) for pid, started in seen if processes.get(pid, (0, 0))[1] == started}
        found |= descendants(processes, {pid for pid, _ in found & ranks})
        found |= marked(processes, set(self._marks.values()))
        if self.remove and not self.is_over:
            found |= users(processes, self.remove)
        return {found_one for found_one in found if found_one[0] not in self._spared}


def main() -> None:
    """Guard until there is nothing left to guard."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ends with what it guards, not before
    guardian, text = Guardian(), ""
    os.set_blocking(0, False)
    looked_s = time.monotonic()
    while not guardian.is_over and time.monotonic() < guardian.lease_ends_s:
        if select.select([0], [], [], LOOK_S)[0]:
            chunk = os.read(0, 65536).decode()
            if not chunk:
                break
            *lines, text = (text + chunk).split("\n")
            for line in lines:
                guardian.take(line)
        guardian.look()
        before_s, looked_s = looked_s, time.monotonic()
        guardian.waited(looked_s - before_s)
    guardian.end()


if __name__ == "__main__":
    main()
    sys.exit()
