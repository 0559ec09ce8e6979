"""Launches on nodes whose tools keep what they compile: what one node made, another one finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.gang.in_process import InProcessLauncher
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report, from_json, to_json
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.worker.rank.rank_worker import RankWorker

KERNEL = "atc_data/kernel_cache/Ascend910/add.o"


class Cluster:
    """A store, and nodes with a home and a cache directory each; a tool compiles what its home lacks."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.num_compiles = 0
        first_call = RankWorker.first_call

        def with_tool(worker: RankWorker, place: int) -> Any:
            self._run_tool(self.root / self.node / KERNEL)
            return first_call(worker, place)

        patch.setattr(RankWorker, "first_call", with_tool)
        self.node = ""

    def _run_tool(self, kernel: Path) -> None:
        if not kernel.exists():
            self.num_compiles += 1
            kernel.parent.mkdir(parents=True, mode=0o700)
            kernel.write_bytes(b"kernel")

    def launch(self, node: str, num_ranks: int) -> Report:
        self.node = node
        self.patch.setenv("HOME", str(self.root / node))
        config = parse(
            {
                "workload": {"entrypoint": "tests.support.tiny_workload:workload"},
                "ranks": num_ranks,
                "parallel": {"dp": num_ranks},
                "cache_dir": str(self.root / node / "cache"),
                "store": store_config(self.root / "store"),
                "node_caches": {"operators": {"path": "~/atc_data", "patterns": ["kernel_cache*/*"]}},
            }
        )
        report = launch(config, launcher=InProcessLauncher())
        return from_json(to_json(report))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def of(report: Report) -> NodeArtifacts:
    (node,) = report.node_artifacts
    return node.artifacts


@pytest.mark.slow
def test_new_node_finds_what_another_ones_tools_made(cluster: Cluster) -> None:
    cold = of(cluster.launch("one", 2))
    assert (cold.num_new, cold.num_files, cold.num_fetched, cluster.num_compiles) == (1, 1, 0, 1)
    report = cluster.launch("two", 4)
    assert (of(report).num_fetched, of(report).num_placed, of(report).num_new) == (1, 1, 0)
    assert (cluster.num_compiles, report.totals.num_compiled) == (1, 0)
    assert (cluster.root / "two" / KERNEL).read_bytes() == b"kernel"
    # What came from the store stays in the manifests of those who use it.
    assert of(cluster.launch("three", 4)).num_placed == 1
