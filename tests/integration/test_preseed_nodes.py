"""Nodes of a real Ray cluster seeded from a shared store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.look.verify import cached_files
from tests.support.launched import loaded_config, store_launch
from tests.support.ray_cluster import RayCluster, ray_cluster

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 120

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(num_nodes=2) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, cluster: RayCluster) -> Path:
    config = loaded_config(tmp_path, ray={"address": cluster.address})
    store_launch(config, tmp_path / "work")
    return tmp_path


def preseed(cluster: RayCluster, project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "preseed", "tiny.yaml", "--json", *options]
    environ = {**cluster.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, cwd=project, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_every_node_is_seeded_once(cluster: RayCluster, project: Path):
    done = preseed(cluster, project)
    assert done.returncode == 0, done.stderr
    seeds = json.loads(done.stdout)
    assert len({seed["node"]["node_id"] for seed in seeds}) == 2
    assert [(seed["found"], seed["num_partitions"]) for seed in seeds] == [(True, 2), (True, 2)]
    assert len(cached_files(project / "cache")) == 4


def test_unknown_node_lists_the_nodes(cluster: RayCluster, project: Path):
    done = preseed(cluster, project, "--node", "elsewhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert len([line for line in done.stderr.splitlines() if line.startswith("  ")]) == 2
    assert not (project / "cache").exists()
