"""What a driver sends to its ranks so that they come up, as the bytes that leave it."""

from __future__ import annotations

import pickle
from pathlib import Path

from benchmarks.scale_parts.world import RANKS_A_NODE, World
from orchestrator.config.reading import parse
from orchestrator.gang.launcher import Process, seat_ranks
from orchestrator.gang.opening import Opening, rank_spec


def packed(world: World, work: Path) -> list[bytes]:
    """For every rank the bytes of what it is sent."""
    config = parse(
        {
            "workload": {"entrypoint": "examples.llama:workload", "arguments": {"layers": 32}},
            "ranks": world.ranks,
            "parallel": {"tp": world.tp, "pp": world.pp, "dp": world.ranks // (world.tp * world.pp)},
            "cache_dir": str(work / "cache"),
            "store": {"path": str(work / "store"), "trust": {"policy": "off"}},
        }
    )
    processes = [
        Process(node_id=f"node{node}", host=f"node{node}", address="10.0.0.1", pid=1)
        for node in (rank // RANKS_A_NODE for rank in range(world.ranks))
    ]
    _, seats = seat_ranks(processes)
    return [
        pickle.dumps(
            Opening(config=config, seat=seat, master_addr="10.0.0.1", master_port=1234, no_compile=False)
        )
        for seat in seats
    ]


def unpacked(data: bytes) -> int:
    """A rank's view of it; its rank."""
    opening: Opening = pickle.loads(data)  # noqa: S301 - these are the bytes made above
    return rank_spec(opening).rank
