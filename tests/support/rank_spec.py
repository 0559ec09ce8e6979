"""What a driver tells one rank, for ranks that run in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warmrank.worker.rank.start import RankSpec


def rank_spec(cache_dir: Path, **changed: Any) -> RankSpec:
    """A rank without process groups; ``changed`` replaces single values."""
    world_size = changed.get("world_size", 1)
    values: dict[str, Any] = {
        "rank": 0,
        "world_size": world_size,
        "local_rank": 0,
        "local_world_size": world_size,
        "node_rank": 0,
        "master_addr": "127.0.0.1",
        "master_port": 0,
        "device_kind": "cpu",
        "groups": {"world": (tuple(range(world_size)),)},
        "entrypoint": "tests.support.workloads:plain",
        "arguments": {},
        "cache_dir": str(cache_dir),
        "guards": "once",
        "timeout_s": 30.0,
    }
    return RankSpec(**{**values, **changed})
