"""Launches on two and four nodes, and preseeds: what is compiled, what crosses the network, what is left.

The pair of nodes is part of `make test-slow`, the rest of `make test-cluster`.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launching import counts, store_launch
from tests.support.netns import Node, until
from tests.support.netns_cluster import Cluster, CountingStore, ray_nodes
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.inspect.store_contents import cached_files
from warmrank.orchestrator.launch.report import Report

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

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


@pytest.mark.netns
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


@pytest.mark.netns
def test_smaller_world_compiles_nothing(nodes: Cluster, tiny: Path, cold: Report) -> None:
    assert cold.record
    report = nodes.launch(tiny, "--no-compile", "--set", "ranks=4", "--set", "parallel.dp=2")
    assert (counts(report)[0], len(report.ranks)) == (0, 4)


@pytest.fixture(scope="module")
def pair(namespaces: None) -> Iterator[Cluster]:
    """Two nodes of one CPU."""
    with ray_nodes(2, num_cpus=1) as cluster:
        yield cluster


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_two_nodes_compile_once_and_load_afterwards_leaving_nothing(pair: Cluster) -> None:
    config = pair.config("pair", ranks=2, parallel={"tp": 2})
    cold, warm = pair.launch(config), pair.launch(config, "--no-compile")
    assert (counts(cold), counts(warm)) == ((2, 0, 2), (0, 4, 0))
    for report in (cold, warm):
        assert {rank.host for rank in report.ranks} == {"n1", "n2"}
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    assert pair.left_over() == {}


class Seeding:
    """Nodes whose disks do not have the stored launch yet, in a cache directory of a test's own."""

    def __init__(self, nodes: Cluster, store: CountingStore, config: Path, cache: str) -> None:
        self.nodes = nodes
        self.cache = cache
        self.config = (str(config), "--set", f"cache_dir={nodes.net.disk / cache}")
        self._store = store
        self._before = self._all_reads()

    def reads(self) -> Reads:
        """How often each node read each blob since."""
        return self._all_reads() - self._before

    def num_files(self, node: Node) -> int:
        """Artifacts on a node's disk."""
        return len(cached_files(node.disk / self.cache))

    def _all_reads(self) -> Reads:
        return self._store.blob_reads("tiny")


@pytest.fixture
def seeding(
    request: pytest.FixtureRequest, nodes: Cluster, counting_store: CountingStore, tiny: Path, cold: Report
) -> Seeding:
    assert cold.totals.num_compiled == FUNCTIONS
    return Seeding(nodes, counting_store, tiny, request.node.name)


@pytest.mark.netns
def test_every_node_reads_each_blob_once(seeding: Seeding) -> None:
    nodes = seeding.nodes.net.nodes
    seeds = seeding.nodes.preseed(*seeding.config, "--fan-out", "never")
    assert sorted(seed["node"]["host"] for seed in seeds) == sorted(nodes)
    assert [seed["num_partitions"] for seed in seeds] == [RANKS] * len(nodes)
    assert {client for client, _ in seeding.reads()} == {node.address for node in nodes.values()}
    assert max(seeding.reads().values()) == 1
    assert {seeding.num_files(node) for node in nodes.values()} == {RANKS * FUNCTIONS}


@pytest.mark.netns
def test_fan_out_reads_the_store_once_for_all_nodes_one_of_them_slow(seeding: Seeding) -> None:
    nodes = seeding.nodes.net.nodes
    with seeding.nodes.net.throttled(nodes[max(nodes)], "8mbit"):
        seeds = seeding.nodes.preseed(*seeding.config, "--fan-out", "always")
    assert sorted(seed["node"]["host"] for seed in seeds) == sorted(nodes)
    of_all_nodes = Counter(blob for _, blob in seeding.reads().elements())
    assert len(of_all_nodes) == FUNCTIONS
    assert max(of_all_nodes.values()) == 1
    assert {seeding.num_files(node) for node in nodes.values()} == {RANKS * FUNCTIONS}


@pytest.fixture
def whole(nodes: Cluster) -> Iterator[Cluster]:
    """The cluster, with the nodes that it has now afterwards."""
    before = set(nodes.net.nodes)
    yield nodes
    for name in set(nodes.net.nodes) - before:
        nodes.kill_node(nodes.net.nodes[name])
    nodes.await_alive()


@pytest.mark.netns
def test_node_lost_in_a_fan_out_keeps_no_other_one_back(whole: Cluster) -> None:
    """It has bytes of others on their way when its power goes."""
    store = {"path": str(whole.shared / "large"), "trust": {"policy": "off"}}
    config = whole.config("large", ranks=2, parallel={"tp": 2}, store=store)
    functions = {f"Llama.f{number}": random.Random(number).randbytes(3 << 20) for number in range(8)}
    store_launch(load(config), whole.shared / "work", functions=functions)
    (fifth,) = whole.add_nodes(1)
    with contextlib.ExitStack() as links:
        for node in whole.net.nodes.values():
            links.enter_context(whole.net.throttled(node, "40mbit"))
        words = ("--set", f"cache_dir={whole.net.disk / 'large'}", "--fan-out", "always", "--json")
        preseed = whole.start("preseed", str(config), *words)
        until(
            lambda: any(file.stat().st_size for file in (fifth.disk / "large").glob(".tmp-*/*/*")),
            timeout_s=60,
            what=preseed.said,
        )
        links.pop_all().close()  # before the node goes, whose link could not be freed of its limit
        whole.kill_node(fifth)
    ended = preseed.wait()
    assert ended.exit_code == 4, ended.said
    seeds = {seed["node"]["host"]: seed for seed in json.loads(ended.output)}
    assert [host for host, seed in seeds.items() if seed["faults"]] == [fifth.name]
    others = [node for node in whole.net.nodes.values() if node != fifth]
    assert [len(cached_files(node.disk / "large")) for node in others] == [2 * len(functions)] * 4
    assert sum(seeds[node.name]["bytes_from_nodes"] > 0 for node in others) == len(others) - 1


@pytest.mark.netns
def test_node_that_joins_is_seeded_by_the_watch_and_a_larger_launch_compiles_nothing(
    whole: Cluster, seeding: Seeding
) -> None:
    watch = whole.start("preseed", *seeding.config, "--watch", "--until", "5", "--json")
    (fifth,) = whole.add_nodes(1)
    ended = watch.wait()
    assert ended.exit_code == 0, ended.said
    seeds = [json.loads(line) for line in ended.output.splitlines()]
    assert sorted(seed["node"]["host"] for seed in seeds) == sorted(whole.net.nodes)
    assert max(seeding.reads().values()) == 1
    assert seeding.num_files(fifth) == RANKS * FUNCTIONS
    report = whole.launch(*seeding.config, "--no-compile", "--set", "ranks=10", "--set", "parallel.dp=5")
    assert report.totals.num_compiled == 0
    assert {rank.host for rank in report.ranks} == set(whole.net.nodes)
