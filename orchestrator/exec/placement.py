"""The nodes that run a command, the placeholders in it, and the test of its readiness.

Only the placeholders listed here are replaced, so that JSON and shell code with braces of their own pass
through untouched.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import BadArgument, CannotStart
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.text import count_text

_PORT = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):)?(?P<port>[0-9]{1,5})", re.ASCII)
_CONNECT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A node's place in a world of ranks; the fields are the placeholders of the command.

    Each of ``nnodes`` has ``nproc`` of all ``ranks``; the port was free at the address of the first node.
    """

    node_rank: int
    nnodes: int
    nproc: int
    ranks: int
    master_addr: str
    master_port: int
    cache_dir: str

    def fill(self, word: str) -> str:
        """Replace ``{node_rank}`` and the like in a word of the command; other braces stay."""
        known = asdict(self)
        return re.sub("{(" + "|".join(known) + ")}", lambda match: str(known[match[1]]), word)

    def variables(self) -> dict[str, str]:
        """The same as environment variables."""
        own = {f"WARMRANK_{name.upper()}": str(value) for name, value in asdict(self).items()}
        return {**own, "TORCHAIR_CACHE_HOME": self.cache_dir}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """This host's place among those that each run ``exec --here``, with as many ranks, for one world.

    ``run_id`` is the same on all hosts of this run, and of no other; address and port are of the first host,
    empty or 0 where the command finds them by itself.
    """

    nnodes: int
    node_rank: int
    run_id: str
    master_addr: str = ""
    master_port: int = 0


def placements(
    config: Config, addresses: Sequence[str], ports: Sequence[int], hosts: HostGroup | None
) -> tuple[Placement, ...]:
    """Each node's place, given its address and a free port of it; or this host's among ``hosts``."""
    group = hosts or HostGroup(nnodes=len(addresses), node_rank=0, run_id="")
    return tuple(
        Placement(
            node_rank=group.node_rank + index,
            nnodes=group.nnodes,
            nproc=config.ranks // group.nnodes,
            ranks=config.ranks,
            master_addr=group.master_addr or addresses[0],
            master_port=group.master_port or ports[0],
            cache_dir=str(config.cache_dir),
        )
        for index in range(len(addresses))
    )


def choose_nodes(rooms: Mapping[Node, int], num_ranks: int, *, named: bool) -> tuple[Node, ...]:
    """The fewest nodes on which the ranks fit, as many on each: the emptier of a big cluster stay free.

    ``rooms`` says how many ranks each node can hold; all of those that were ``named`` must be used.

    Raises:
        CannotStart: the ranks do not fit.
    """
    roomy = sorted(rooms, key=lambda node: -rooms[node])  # stable: equal ones keep their order
    for count in [len(rooms)] if named else range(1, len(rooms) + 1):
        if count and num_ranks % count == 0 and rooms[roomy[count - 1]] >= num_ranks // count:
            return tuple(node for node in rooms if node in roomy[:count])
    there = ", ".join(f"{node.host} ({node.address}) holds {room}" for node, room in rooms.items())
    ranks = count_text(num_ranks, "rank") + (" does" if num_ranks == 1 else " do")
    msg = (
        f"{ranks} not fit with as many on each node: {there or 'no node is there'}. Change ranks or "
        "ray.num_cpus_per_rank, or name nodes with --node"
    )
    raise CannotStart(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """When a command is ready, so that what it added is published; ``none``: never.

    ``path`` is the file's, which may hold placeholders; ``host`` has the port, empty for this node.
    """

    kind: Literal["file", "port", "exit", "none"]
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "file":
            return f"file {self.path} appears"
        if self.kind == "port":
            return f"port {self.host + ':' if self.host else ''}{self.port} accepts connections"
        return "the command ends with status 0" if self.kind == "exit" else "never"

    def mark(self) -> tuple[int, ...] | None:
        """Identity of the file, or of the port that accepts connections; None while there is none."""
        hosts = [self.host] if self.host else ["127.0.0.1", "::1"]
        if self.kind == "port":
            return (self.port,) if any(_connects(host, self.port) for host in hosts) else None
        if self.kind == "file":
            with suppress(OSError):
                found = Path(self.path).stat()
                return found.st_ino, found.st_mtime_ns
        return None


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def parse_when(text: str) -> When:
    """Read ``exit``, ``none``, ``PORT``, ``HOST:PORT``, or else the path of a file.

    Raises:
        BadArgument: it is empty, or no such port exists.
    """
    if text in ("exit", "none"):
        return When(kind="exit" if text == "exit" else "none")
    match = _PORT.fullmatch(text)
    if match is not None and 0 < int(match["port"]) < 2**16:
        return When(kind="port", host=(match["host"] or "").strip("[]"), port=int(match["port"]))
    if match is not None or not text:
        msg = (
            f"--publish-when {text!r}: expected exit, none, a port from 1 to 65535 (or HOST:PORT), or the "
            "path of a file (./NAME for one whose name is a number)"
        )
        raise BadArgument(msg)
    return When(kind="file", path=text)
