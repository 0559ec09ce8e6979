"""Launches of eight ranks on four nodes: what is compiled, what crosses the network, what is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.launching import counts
from tests.support.netns_cluster import Cluster, CountingStore
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
    before = counting_store.blob_reads("tiny")
    report = nodes.launch(tiny, "--no-compile", "--set", f"cache_dir={nodes.net.disk / 'empty'}")
    return report, counting_store.blob_reads("tiny") - before


def test_cold_launch_compiles_each_function_once_and_a_warm_one_reads_each_blob_once_a_node(
    nodes: Cluster, cold: Report, warm_and_reads: tuple[Report, Reads]
) -> None:
    warm, reads = warm_and_reads
    assert counts(cold) == (FUNCTIONS, 0, FUNCTIONS * (RANKS - 1))
    assert counts(warm) == (0, FUNCTIONS * RANKS, 0)
    assert {client for client, _ in reads} == {node.address for node in nodes.net.nodes.values()}
    assert max(reads.values()) == 1
    hosts = [rank.host for rank in cold.ranks]  # ranks fill nodes in pairs
    assert (sorted(hosts[::2]), hosts[::2]) == (["n1", "n2", "n3", "n4"], hosts[1::2])
    for report in (cold, warm):  # sums over tensor parallel ranks are right
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    assert nodes.left_over() == {}


def test_smaller_world_compiles_nothing(nodes: Cluster, tiny: Path, cold: Report) -> None:
    assert cold.record
    report = nodes.launch(tiny, "--no-compile", "--set", "ranks=4", "--set", "parallel.dp=2")
    assert (counts(report)[0], len(report.ranks)) == (0, 4)
