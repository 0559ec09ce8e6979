"""Nodes of a real Ray cluster seeded from a shared store."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import PYTHONPATH, ended
from tests.support.launching import loaded_config, store_launch
from tests.support.ray_cluster import RayCluster, free_ports, ray_cluster
from tests.support.stored import FUNCTIONS, tree
from warmrank.orchestrator.inspect.store_contents import cached_files
from warmrank.orchestrator.seed.on_ray import seed_cluster
from warmrank.orchestrator.seed.seeding import Outcomes, SeedPlan

TIMEOUT_S = 120

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def pair() -> Iterator[RayCluster]:
    with ray_cluster(num_nodes=2) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, pair: RayCluster) -> Path:
    config = loaded_config(tmp_path, ray={"address": pair.address})
    store_launch(config, tmp_path / "work")
    return tmp_path


def preseed(pair: RayCluster, project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = ("preseed", "tiny.yaml", "--json", *options)
    return ended("-m", "warmrank", *words, cwd=project, environ=pair.environ)


def test_node_of_a_cluster_is_seeded(cluster: str, tmp_path: Path):
    config = loaded_config(tmp_path, ray={"address": cluster, "ship_code": False})
    store_launch(config, tmp_path / "work")
    outcomes = Outcomes(lambda _line, _style: None)
    seed_cluster(config, SeedPlan(fan_out="always"), outcomes.take)
    (found,) = outcomes.all()
    assert (found.found, found.num_partitions, found.faults) == (True, 2, ())
    assert len(cached_files(config.cache_dir)) == 4


@pytest.mark.slow
def test_every_node_is_seeded_once(pair: RayCluster, project: Path):
    done = preseed(pair, project)
    assert done.returncode == 0, done.stderr
    seeds = json.loads(done.stdout)
    assert len({seed["node"]["node_id"] for seed in seeds}) == 2
    assert [(seed["found"], seed["num_partitions"]) for seed in seeds] == [(True, 2)] * 2
    assert len(cached_files(project / "cache")) == 4


LARGE = random.Random(5).randbytes(20 << 20)


def disks(pair: RayCluster, project: Path, fan_out: str) -> tuple[list[Any], dict[str, dict[str, int]]]:
    """What became of nodes that have a disk each, and how often each opened each blob of the store."""
    config = loaded_config(project, ray={"address": pair.address, "ship_code": False})
    store_launch(config, project / "work", functions={**FUNCTIONS, "Llama.large": LARGE})
    words = ("tests.support.fan_out_child", str(project / "tiny.yaml"), fan_out)
    done = ended("-m", *words, environ=pair.environ)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["seeds"], answer["reads"]


def of_each_node(project: Path, seeds: list[Any]) -> list[dict[str, bytes]]:
    return [tree(project / "cache" / seed["node"]["node_id"]) for seed in seeds]


@pytest.mark.slow
def test_fan_out_reads_the_store_once_for_all_nodes(pair: RayCluster, tmp_path: Path):
    seeds, reads = disks(pair, tmp_path, "always")
    assert [seed["faults"] for seed in seeds] == [[], []]
    opened = sum((Counter(blobs) for blobs in reads.values()), Counter())
    assert sorted(opened.values()) == [1, 1, 1]
    first, *others = of_each_node(tmp_path, seeds)
    assert LARGE in first.values()
    assert others == [first]
    assert sorted(seed["bytes_from_nodes"] > len(LARGE) for seed in seeds) == [False, True]


@pytest.mark.slow
def test_watch_seeds_all_nodes_and_ends_when_enough_are(pair: RayCluster, project: Path):
    done = preseed(pair, project, "--watch", "--until", "2", "--for", str(TIMEOUT_S))
    assert done.returncode == 0, done.stderr
    seeds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [seed["found"] for seed in seeds] == [True] * 2
    assert "2 nodes found" in done.stderr
    assert len(cached_files(project / "cache")) == 4


@pytest.mark.slow
def test_watch_of_a_head_that_is_away_says_so_and_ends_when_told(pair: RayCluster, project: Path):
    (port,) = free_ports(1)
    options = ("--watch", "--for", str(TIMEOUT_S), "--set", f"ray.address=127.0.0.1:{port}")
    with subprocess.Popen(
        [sys.executable, "-m", "warmrank", "preseed", "tiny.yaml", *options],
        cwd=project,
        env={**pair.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        first = watch.stderr.readline()  # it gives up by itself, so this ends
        watch.send_signal(signal.SIGTERM)
        assert "the cluster is away, and asked again until it is back: the Ray cluster at" in first
        assert watch.wait(TIMEOUT_S) == 143
        assert (watch.stdout.read(), watch.stderr.read()) == ("", "stopped\n")
