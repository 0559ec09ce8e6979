"""A world on several hosts, each of which runs `exec --here`: what they tell each other, through the store.

Every host notes which partitions of its ranks are in the store, then looks for the notes of all others. Who
finds them all commits the launch; hosts that end at the same moment may both, which comes to one record. A
note is a pushed directory with one file, under the run's id, so it is signed and evicted as others are.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.errors import NotInStore
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.worker.results import Published

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store

TOOL = "exec-world"
_FILE = "partitions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This host's place among those that run the ranks of one world, an equal number on each.

    Attributes:
        num_nodes: how many hosts.
        node_rank: which one this is, from 0.
        run_id: what all hosts of this run, and of no other, are given.
        master_addr: address of the first host; empty where the command finds it by itself.
        master_port: a port there; 0 likewise.
    """

    num_nodes: int
    node_rank: int
    run_id: str
    master_addr: str = ""
    master_port: int = 0


def exchange(
    store: Store, config: Config, world: World, published: Mapping[int, Published]
) -> dict[int, Published] | None:
    """Note what this host published, and read the notes of all; None while some are missing.

    Raises:
        cache_store.errors.StoreError: the store cannot be written or read.
    """
    with tempfile.TemporaryDirectory(prefix="warmrank-") as directory:
        own = Path(directory, "own")
        own.mkdir(mode=0o700)
        (own / _FILE).write_text(_to_json(published))
        (own / _FILE).chmod(0o600)
        store.push_directory(TOOL, own, _components(config, world, world.node_rank))
        found: dict[int, Published] = {}
        for node in range(world.num_nodes):
            place = Path(directory, str(node))
            try:
                store.pull_directory(TOOL, place, _components(config, world, node))
            except NotInStore:
                return None
            found |= _from_json((place / _FILE).read_text())
    return found if sorted(found) == list(range(config.ranks)) else None


def _components(config: Config, world: World, node: int) -> dict[str, str]:
    return {
        "launch": launch_key(config),
        "ranks": str(config.ranks),
        "run": world.run_id,
        "node": f"{node} of {world.num_nodes}",
    }


def _to_json(published: Mapping[int, Published]) -> str:
    return json.dumps(
        {
            rank: {
                "ref": part.ref.model_dump(mode="json") if part.ref is not None else None,
                "environment": part.environment,
                "partition": part.partition,
                "key": part.key,
                "num_blobs_new": part.num_blobs_new,
            }
            for rank, part in published.items()
        }
    )


def _from_json(text: str) -> dict[int, Published]:
    return {
        int(rank): Published(**{**part, "ref": PartitionRef.model_validate(part["ref"])})
        for rank, part in json.loads(text).items()
    }
