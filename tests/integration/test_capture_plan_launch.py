"""The capture plan over launches: what one launch captured, a later one captures before its first call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.stored import store_config
from warmrank.cache_store.records.manifest import CaptureEntry
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.store.stores import open_store
from warmrank.worker.capture.plan import parse as parse_plan
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionProbe, FunctionResult


class WatchedRank(RankWorker):
    """Notes the rows that were captured when the first call came."""

    seen: list[list[int]]

    def first_call(self, place: int) -> tuple[FunctionResult | FunctionProbe, ...]:
        (unit,) = self._units.values()
        assert unit.variant is not None
        type(self).seen.append([shapes.inputs[0].sizes[0] for shapes in unit.variant.runner.shapes()])
        return super().first_call(place)


@pytest.fixture
def watched() -> type[WatchedRank]:
    WatchedRank.seen = []
    return WatchedRank


class House:
    """One store, and a node with a cache directory of its own for each launch."""

    def __init__(self, root: Path, worker: type[WatchedRank]) -> None:
        self.root, self.worker, self.num_nodes = root, worker, 0

    def launch(self, num_ranks: int = 1) -> list[list[int]]:
        """Rows that were captured on each rank before its first call."""
        self.num_nodes += 1
        config = parse(
            {
                "name": "sized",
                "workload": {"entrypoint": "tests.support.workloads:sized"},
                "ranks": num_ranks,
                "parallel": {"dp": num_ranks},
                "cache_dir": str(self.root / f"node{self.num_nodes}"),
                "store": store_config(self.root / "store"),
            }
        )
        self.worker.seen.clear()
        self.config: Any = config
        self.report = launch(config, launcher=InProcessLauncher(self.worker))
        return [list(rows) for rows in self.worker.seen]

    def captures(self) -> list[CaptureEntry]:
        """The plan of rank 0's newest manifest."""
        store = open_store(self.config.store)
        (summary, *_) = store.launch_summaries(launch_key(self.config))
        (stored,) = store.take_launches([summary.name])
        return list(store.manifest(stored.record.partitions[0].manifest_key).captures)


@pytest.fixture
def house(tmp_path: Path, watched: type[WatchedRank]) -> House:
    return House(tmp_path, watched)


def test_everything_that_a_launch_captured_is_in_its_manifest(house: House) -> None:
    house.launch()
    captures = house.captures()
    assert {entry.function for entry in captures} == {"Plain.affine"}
    assert [parse_plan(entry.signature)[1].inputs[0].sizes for entry in captures] == [(8, 4), (5, 4), (2, 4)]


def test_later_launch_captures_the_plan_before_its_first_call_and_the_largest_first(house: House) -> None:
    house.launch()
    assert house.launch() == [[8, 5, 2]]


def test_ranks_of_a_larger_world_capture_the_plan_of_a_smaller_one(house: House) -> None:
    house.launch(1)
    assert house.launch(2) == [[8, 5, 2]] * 2
