"""Ranks in this process that take themselves for ranks of several nodes, each with a disk of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.rank_host import MakeWorker, RankInit
from warmrank.orchestrator.seats import Gang


class NodeLauncher(InProcessLauncher):
    """Places ranks on named nodes; see `orchestrator.gang.launcher.Launcher`.

    Args:
        nodes: of every rank; those of one node stand together.
        disks: where each node's cache directory lies, under its name.
        make_worker: as in `RankHost`.
        host: the host name of all nodes; empty where the name of each is its host name.
    """

    def __init__(
        self, nodes: Sequence[str], disks: Path, make_worker: MakeWorker | None = None, *, host: str = ""
    ) -> None:
        super().__init__(make_worker)
        self._host = host
        self._nodes = tuple(nodes)
        self._disks = disks

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Make the ranks, and seat them."""
        gang = super().start(num_ranks, timeout_s=timeout_s)
        processes = [
            Process(node_id=node, host=self._host or node, address="127.0.0.1", pid=os.getpid())
            for node in self._nodes
        ]
        return replace(gang, seats=seat_ranks(processes)[1], master_port=0)

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call one rank after the other; what opens a rank names the disk of its node."""
        if method == "open":
            arguments = {rank: (self._init(rank, *values),) for rank, values in arguments.items()}
        return super().call(stage, method, arguments, timeout_s=timeout_s)

    def _init(self, rank: int, init: RankInit) -> RankInit:
        own = {"cache_dir": self._disks / self._nodes[rank]}
        return replace(init, config=init.config.model_copy(update=own))
