"""Preseeding nodes over the network: one fetch a node, counted at the store, and nodes that come later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.look.verify import cached_files
from orchestrator.show.report import Report
from tests.support.netns import Node
from tests.support.netns_cluster import Cluster
from tests.support.netns_store import CountingStore, blob_reads

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(180)]

RANKS = 8
FUNCTIONS = 2
CACHE = "seeded"


@pytest.fixture(scope="module")
def stored(nodes: Cluster, tiny: Path, cold: Report) -> tuple[str, ...]:
    """A config whose launch is in the store, with a cache directory that is on no node's disk yet."""
    assert cold.totals.num_compiled == FUNCTIONS
    return str(tiny), "--set", f"cache_dir={nodes.net.disk / CACHE}"


@pytest.fixture
def fifth(nodes: Cluster) -> Iterator[Node]:
    """A node that joins the other four, for one test."""
    (node,) = nodes.add_nodes(1)
    yield node
    nodes.kill_node(node)
    nodes.await_alive()


def test_every_node_reads_each_blob_once(
    nodes: Cluster, counting_store: CountingStore, stored: tuple[str, ...]
) -> None:
    before = blob_reads(counting_store.requests("tiny"))
    seeds = nodes.preseed(*stored)
    reads = blob_reads(counting_store.requests("tiny")) - before
    assert sorted(seed["node"]["host"] for seed in seeds) == sorted(nodes.net.nodes)
    assert [seed["num_partitions"] for seed in seeds] == [RANKS] * len(seeds)
    assert {client for client, _ in reads} == {node.address for node in nodes.net.nodes.values()}
    assert max(reads.values()) == 1
    for node in nodes.net.nodes.values():
        assert len(cached_files(node.disk / CACHE)) == RANKS * FUNCTIONS


def test_node_that_joins_is_seeded_alone_and_its_launch_compiles_nothing(
    nodes: Cluster, counting_store: CountingStore, stored: tuple[str, ...], fifth: Node
) -> None:
    before = blob_reads(counting_store.requests("tiny"))
    (seed,) = nodes.preseed(*stored, "--node", fifth.name)
    reads = blob_reads(counting_store.requests("tiny")) - before
    assert (seed["node"]["host"], seed["num_partitions"]) == (fifth.name, RANKS)
    assert {client for client, _ in reads} == {fifth.address}
    assert max(reads.values()) == 1
    report = nodes.launch(*stored, "--no-compile", "--set", "ranks=10", "--set", "parallel.dp=5")
    assert report.totals.num_compiled == 0
    assert {rank.host for rank in report.ranks} == set(nodes.net.nodes)
