"""The port to whatever runs the ranks, and the plain values that pass it.

Invariants: a rank's failure comes back as a `WorkerFailure`, whatever happened to its process; when `release`
or `stop` returns, no process that `start` made is left on any node that can be reached.
"""

from __future__ import annotations

import random
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from warmrank.cache_store.text import grouped
from warmrank.orchestrator.nodes import Gang, RankPlacement, in_order

# Below Linux's default range of ephemeral ports (from 32768), above those that Ray gives to its workers (to
# 19999): between the look and the use nobody is likely to come.
_QUIET_PORTS = range(20000, 32768)
_TRIES = 100


def free_port(address: str) -> int:
    """A TCP port that nothing listens on at this moment; of this host's ``address``, the family counts."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (*random.sample(_QUIET_PORTS, _TRIES), 0):
        with socket.socket(family) as probe, suppress(OSError):
            probe.bind(("", port))  # every address, as the store of a process group does
            return int(probe.getsockname()[1])
    raise OSError("no TCP port is free")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """A rank as seen from outside."""

    state: str  # its letter in /proc/PID/stat, empty for no such process
    cpu_s: float = 0.0  # of user and system mode
    resident_bytes: int = 0
    doing: str = ""  # its work; empty when idle

    @property
    def is_gone(self) -> bool:
        """True once its process has ended."""
        return self.state in {"", "Z", "X"}

    @property
    def is_stopped(self) -> bool:
        """True while a signal or a debugger holds it."""
        return self.state in {"T", "t"}


@dataclass(frozen=True, slots=True)
class Shared:
    """A large value among the arguments of many ranks: equal ones by identity are sent once to each node."""

    value: Any


class Launcher(ABC):
    """Starts ranks, calls them, ends them.

    Attributes:
        on_wait: called about every half second while ranks start, with what is lacking, or nothing where that
            is not known or was told before.
    """

    on_wait: Callable[[str], None] = staticmethod(lambda _lacking: None)

    @abstractmethod
    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Start a process for every rank and assign ranks; once more only after `release`.

        Raises:
            CannotStart: resources are missing, or the time-out passed; names them and the remedy.
            LaunchFailed: what ranks run on is lost.
        """

    @abstractmethod
    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call a method of the `RankHost` of each rank named, all at the same time.

        Yields:
            Rank, and its answer or a `WorkerFailure`, in the order in which ranks answer; between them a
            `ProcessStatus` now and then. A rank that was not called may fail too. The end may come before
            every rank answered: after ``timeout_s``, or soon after a failure, which the others may be waiting
            on.
        """

    @abstractmethod
    def release(self) -> None:
        """End every process of the ranks; another gang may be started. At any time, and more than once."""

    def stop(self) -> None:
        """Release the ranks and end all else; may be called at any time, and more than once."""
        self.release()

    def stacks(self, ranks: Collection[int]) -> dict[int, str]:  # noqa: ARG002 - where nobody can look
        """The stacks of the threads of some of these ranks, by rank."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A started process that has no rank yet; two nodes may share a host name, but never a ``node_id``."""

    node_id: str
    host: str
    address: str
    pid: int


def place_ranks(
    processes: Sequence[Process], *, group_size: int = 1
) -> tuple[tuple[int, ...], tuple[RankPlacement, ...]]:
    """Assign ranks node by node, so that neighbours in rank are neighbours in place.

    Nodes come in the order of their host names, whatever order they are found in, and so in every launch; but
    those that have no whole number of groups (of ``group_size`` ranks that follow each other) come last, for
    they would break the groups of all after them.

    Returns:
        For every rank the index of its process, and its placement.
    """

    def place(members: list[int]) -> tuple[Any, ...]:
        first = processes[members[0]]
        return len(members) % group_size > 0, in_order(first.host), in_order(first.address), first.node_id

    nodes = grouped((process.node_id, index) for index, process in enumerate(processes))
    order: list[int] = []
    placements: list[RankPlacement] = []
    for node_rank, members in enumerate(sorted(nodes.values(), key=place)):
        for local_rank, index in enumerate(members):
            placement = RankPlacement(
                rank=len(order),
                local_rank=local_rank,
                local_world_size=len(members),
                node_rank=node_rank,
                node_id=processes[index].node_id,
                host=processes[index].host,
                pid=processes[index].pid,
            )
            order.append(index)
            placements.append(placement)
    return tuple(order), tuple(placements)
