"""A driver that seeds the nodes of a cluster on one machine as if each had a disk of its own.

Each node's actor gets a cache directory of its own, and writes down each file of the store that it opens.
Prints what became of the nodes, and how often each blob of the store was opened by which node.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from tests.support.checkout import PYTHONPATH
from warmrank.orchestrator.config.reading import Config, load
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.on_ray import NodeSeeder, RaySeedCluster
from warmrank.orchestrator.seed.seeding import Seeding, SeedPlan

READS = "reads"
TIME_S = 60.0


class CountedSeeder(NodeSeeder):
    """Seeds a directory of its own, and notes what it opens in the store."""

    def __init__(self, config: Config, node: Node, *, verify: bool) -> None:
        root = config.cache_dir
        super().__init__(config.model_copy(update={"cache_dir": root / node.node_id}), node, verify=verify)
        assert config.store is not None
        blobs = f"{config.store.tiers[0].path}/cas/"
        log = root / READS / node.node_id
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and str(arguments[0]).startswith(blobs):
                os.write(descriptor, f"{Path(arguments[0]).name}\n".encode())

        sys.addaudithook(note)


def main(config_file: Path, fan_out: Any) -> None:
    config = load(config_file)
    session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        group = NodeGroup(CountedSeeder, {"env_vars": {"PYTHONPATH": PYTHONPATH}}, num_calls=1)
        cluster = RaySeedCluster(config, group)
        seeding = Seeding(cluster, SeedPlan(fan_out=fan_out), limit_s=TIME_S, tell=lambda _: None)
        deadline_s = time.monotonic() + TIME_S
        while not seeding.is_done and time.monotonic() < deadline_s:
            seeding.step()
            time.sleep(0.05)
        seeds = [state.seed for state in seeding.states.values()]
    finally:
        ray_session.leave(session)
    reads = {
        log.name: dict(Counter(log.read_text().split()))
        for log in sorted((config.cache_dir / READS).iterdir())
    }
    print(json.dumps({"seeds": to_jsonable_python(seeds), "reads": reads}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
