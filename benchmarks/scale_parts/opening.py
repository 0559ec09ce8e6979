"""What a driver sends to its ranks so that they come up, as the bytes that leave it."""

from __future__ import annotations

import pickle
from pathlib import Path

from benchmarks.scale_parts.world import RANKS_A_NODE, World
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.gang.launcher import Process, place_ranks
from warmrank.orchestrator.gang.rank_host import RankInit, init_of
from warmrank.orchestrator.nodes import RankPlacement


def config_of(world: World, work: Path) -> Config:
    """The config of the launch."""
    return parse(
        {
            "workload": {"entrypoint": "warmrank.examples.llama:workload", "arguments": {"layers": 32}},
            "ranks": world.ranks,
            "parallel": {"tp": world.tp, "pp": world.pp, "dp": world.ranks // (world.tp * world.pp)},
            "cache_dir": str(work / "cache"),
            "store": {"path": str(work / "store"), "trust": {"policy": "off"}},
            # Of `calling`: the few processes that stand for all nodes take their time.
            "watch": {"node_silent_s": 600, "lease_s": 600},
        }
    )


def placements_of(world: World) -> tuple[RankPlacement, ...]:
    """Where every rank is."""
    processes = [
        Process(node_id=f"node{node}", host=f"node{node}", address="10.0.0.1", pid=1)
        for node in (rank // RANKS_A_NODE for rank in range(world.ranks))
    ]
    return place_ranks(processes)[1]


def packed(world: World, work: Path) -> list[bytes]:
    """For every rank the bytes of what it is sent."""
    config = config_of(world, work)
    return [
        pickle.dumps(init_of(config, placement, master_addr="10.0.0.1", master_port=1234))
        for placement in placements_of(world)
    ]


def unpacked(data: bytes) -> int:
    """A rank's view of it; its rank."""
    opening: RankInit = pickle.loads(data)  # noqa: S301 - these are the bytes made above
    return opening.spec.rank
