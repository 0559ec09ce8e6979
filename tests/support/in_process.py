"""A launcher without processes: all ranks in this one, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from warmrank.orchestrator.gang.launcher import Launcher, Process, free_port, place_ranks
from warmrank.orchestrator.gang.rank_host import MakeWorker, RankHost, answer
from warmrank.orchestrator.nodes import Gang


class InProcessLauncher(Launcher):
    """Holds a `RankHost` for each rank; see `orchestrator.gang.launcher.Launcher`."""

    def __init__(self, make_worker: MakeWorker | None = None) -> None:
        self._make_worker = make_worker
        self._hosts: list[RankHost] = []

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Make the ranks; takes no time worth limiting."""
        del timeout_s
        self._hosts = [RankHost(self._make_worker) for _ in range(num_ranks)]
        process = Process(node_id="here", host=os.uname().nodename, address="127.0.0.1", pid=os.getpid())
        _, placements = place_ranks([process] * num_ranks)
        # Port 0 stands for no process groups: several ranks cannot meet in one thread.
        port = free_port("127.0.0.1") if num_ranks == 1 else 0
        return Gang(placements=placements, master_addr="127.0.0.1", master_port=port)

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call one rank after the other; nothing in this process can cut a call short."""
        del timeout_s
        for rank, values in arguments.items():
            yield rank, answer(self._hosts[rank], rank, stage, method, values)

    def release(self) -> None:
        """Take every rank down."""
        hosts, self._hosts = self._hosts, []
        for rank, host in enumerate(hosts):
            answer(host, rank, "stop", "close", ())
