"""Launches of eight ranks on four nodes: what is compiled, what crosses the network, what is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.launching import counts
from tests.support.netns_cluster import Cluster, CountingStore, blob_reads
from warmrank.orchestrator.launch.report import Report

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(600)]

FUNCTIONS = 2
RANKS = 8


Reads = Counter[tuple[str, str]]


@pytest.fixture(scope="module")
def warm_and_reads(
    nodes: Cluster, tiny: Path, counting_store: CountingStore, cold: Report
) -> tuple[Report, Reads]:
    """A launch on nodes whose disks are empty again, and how often each node read each blob for it."""
    before = blob_reads(counting_store.requests("tiny"))
    report = nodes.launch(tiny, "--no-compile", "--set", f"cache_dir={nodes.net.disk / 'empty'}")
    return report, blob_reads(counting_store.requests("tiny")) - before


@pytest.fixture(scope="module")
def warm(warm_and_reads: tuple[Report, Reads]) -> Report:
    return warm_and_reads[0]


def test_cold_launch_compiles_each_function_once_for_all_nodes(cold: Report) -> None:
    assert counts(cold) == (FUNCTIONS, 0, FUNCTIONS * (RANKS - 1))


def test_ranks_fill_nodes_in_pairs(cold: Report) -> None:
    hosts = [rank.host for rank in cold.ranks]
    assert sorted(hosts[::2]) == ["n1", "n2", "n3", "n4"]
    assert hosts[::2] == hosts[1::2]


def test_sums_over_tensor_parallel_ranks_are_right(cold: Report, warm: Report) -> None:
    for report in (cold, warm):
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)


def test_warm_launch_compiles_nothing(warm: Report) -> None:
    assert counts(warm) == (0, FUNCTIONS * RANKS, 0)


def test_no_process_outlives_its_launch(nodes: Cluster, warm: Report) -> None:
    assert nodes.left_over() == {}


def test_every_node_reads_each_blob_once(nodes: Cluster, warm_and_reads: tuple[Report, Reads]) -> None:
    reads = warm_and_reads[1]
    assert {client for client, _ in reads} == {node.address for node in nodes.net.nodes.values()}
    assert max(reads.values()) == 1


def test_smaller_world_compiles_nothing(nodes: Cluster, tiny: Path, warm: Report) -> None:
    report = nodes.launch(tiny, "--no-compile", "--set", "ranks=4", "--set", "parallel.dp=2")
    assert counts(report)[0] == 0
    assert len(report.ranks) == 4


def test_job_runs_on_the_nodes(nodes: Cluster) -> None:
    """Its code goes along: no import path of the nodes holds the workload."""
    project = nodes.shared / "project"
    project.mkdir()
    (project / "mine.py").write_text((ROOT / "tests" / "support" / "tiny_workload.py").read_text())
    workload = {"entrypoint": "mine:workload"}
    nodes.config("job", workload=workload, ray={}).rename(project / "job.yaml")
    ended = nodes.warmrank("submit", "job.yaml", "--address", nodes.dashboard, cwd=project)
    assert ended.exit_code == 0, ended.said
    assert f"{FUNCTIONS} compiled" in ended.said
    assert "SUCCEEDED" in ended.said
    assert list((nodes.shared / "job" / "launch").rglob("*/*/*"))
    assert nodes.left_over() == {}
