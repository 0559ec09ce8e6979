"""Files that engines' tools keep on a node, through the store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import InProcessLauncher
from tests.support.node_artifacts import destinations, publish_nodes
from tests.support.stored import (
    ENVIRONMENT,
    LAUNCH_KEY,
    blob_path,
    overwrite,
    store_config,
)
from warmrank.cache_store.cache_dir.local import (
    FRESH_S,
    MAX_VARIANTS,
    add_variant,
    companions,
    find_file,
    variants,
)
from warmrank.cache_store.cache_dir.marks import SIGNERS, UNVERIFIED
from warmrank.cache_store.cache_dir.node_files import kept_files
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.gc.evict import EvictPolicy
from warmrank.cache_store.seed import SeedReport, Wanted, seed
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import ConfigError
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report, from_json, to_json
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.worker.rank.rank_worker import RankWorker

ADD, MUL = "operators/kernel_cache/add.o", "operators/kernel_cache/mul.o"
EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def run(store: Store, node: Path, **changes: Any) -> SeedReport:
    """Seed a node, which has its cache directory and its tools' directories below ``node``."""
    arguments: dict[str, Any] = {
        "launch_key": LAUNCH_KEY,
        "environment": ENVIRONMENT,
        "world_size": 4,
        "ranks": None,
        "node_caches": destinations(node),
    }
    return seed(store, Wanted(**(arguments | changes)), node / "cache")


def placed(node: Path) -> dict[str, bytes]:
    """What a node's tools find."""
    roots = {"operators": node / "atc_data", "mine": node / "mine", "ge": node / "ge"}
    return {
        f"{name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for name, root in roots.items()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {UNVERIFIED, SIGNERS} & set(path.parts)
    }


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir(mode=0o700)
    return tmp_path / "node"


def test_node_gets_the_artifacts_of_the_node_that_hosted_its_ranks(store, source, tmp_path):
    publish_nodes(store, source, {0: {ADD: b"of node 0"}, 2: {ADD: b"of node 1"}}, world_size=4)
    for first, expected in ((0, b"of node 0"), (2, b"of node 1")):
        node = tmp_path / f"node{first}"
        node.mkdir()
        report = run(store, node, ranks=(first, first + 1))
        assert placed(node) == {ADD: expected}
        assert (report.node.num_fetched, report.node.num_placed, report.node.skipped) == (1, 1, ())


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_another_world_gets_those_of_each_distinct_set_of_artifacts(store, source, node, world_size):
    functions = {rank: {"M.f": b"stage 0" if rank < 2 else b"stage 1"} for rank in range(4)}
    nodes = {0: {ADD: b"of stage 0"}, 2: {MUL: b"of stage 1"}}
    publish_nodes(store, source, nodes, world_size=4, functions=functions)
    run(store, node, world_size=world_size, ranks=tuple(range(world_size)))
    assert placed(node) == {ADD: b"of stage 0", MUL: b"of stage 1"}


def test_what_is_gone_of_the_newest_launch_comes_from_an_earlier_one(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"early", MUL: b"early"}}, world_size=4, created=EARLY)
    publish_nodes(store, source, {0: {ADD: b"late", MUL: b"late too"}}, world_size=4, created=LATE)
    blob_path(root, b"late").unlink()
    report = run(store, node, ranks=(0, 1)).node
    assert placed(node) == {ADD: b"early", MUL: b"late too"}
    assert ADD in report.skipped[0]


def test_damaged_blob_of_a_node_artifact_is_never_placed(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"add"}}, world_size=4)
    overwrite(blob_path(root, b"add"), b"bad")
    report = run(store, node, ranks=(0, 1))
    assert (len(report.partitions), placed(node), kept_files(node / "cache")) == (2, {}, ())
    assert "corrupt" in report.node.skipped[0]


def test_evict_takes_node_artifacts_with_their_launch_and_keeps_those_of_others(store, root, source):
    for created, data in ((EARLY, b"early"), (LATE, b"late")):
        publish_nodes(store, source, {0: {ADD: data}}, world_size=2, created=created)
    store.evict(EvictPolicy(older_than_s=0.0, keep=1, grace_s=0.0))
    assert not blob_path(root, b"early").exists()
    assert blob_path(root, b"late").exists()


def config(tmp_path: Path, **changes: Any) -> Config:
    return parse(
        {
            "workload": {"entrypoint": "models.tiny:workload"},
            "ranks": 4,
            "parallel": {"dp": 4},
            "cache_dir": str(tmp_path / "cache"),
            "node_caches": {"tools": {"path": str(tmp_path / "tools"), "patterns": ["*.o"]}},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tools": {"pth": "/x"}}, "node_caches.tools.path"),
        ({"tools": {"path": ""}}, "of tools a path"),
        ({"triton": {}}, "of triton a path"),
        ({"ge": {"path": "/x"}}, "engine torchair looks"),
        ({"tools": {"path": "/x", "collect": "some"}}, "what a launch adds or changes"),
        ({"tools": {"path": "/x", "scope": "rank"}}, "once a node"),
        ({"Tools/x": {"path": "/x"}}, "mapping of a name"),
        ({"tools": {"path": "/x", "patterns": []}}, "list of patterns"),
    ],
)
def test_node_caches_that_are_none_are_refused(given: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, node_caches=given)
    assert expected in str(caught.value)


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


DATA = b"kernels"
NAME = f"ge_cache_{digest_bytes(DATA).sha256[:16]}.pt2"


@pytest.fixture
def function_dir(tmp_path: Path) -> Path:
    return tmp_path / "model" / "forward"


def test_damaged_companion_is_moved_aside_and_put_anew(function_dir: Path) -> None:
    path = add_variant(function_dir, DATA, beside=NAME)
    path.write_bytes(b"torn")
    assert find_file(function_dir, digest_bytes(DATA), beside=NAME) is None
    assert add_variant(function_dir, DATA, beside=NAME).read_bytes() == DATA
    assert path.with_name(f"{NAME}.corrupt").read_bytes() == b"torn"


def test_trim_takes_what_no_variant_names_any_more(function_dir: Path) -> None:
    needed = b"needed"
    kept = add_variant(function_dir, needed, beside=f"ge_cache_{digest_bytes(needed).sha256[:16]}.pt2")
    orphan = add_variant(function_dir, DATA, beside=NAME)
    for number in range(MAX_VARIANTS):
        add_variant(function_dir, f"{number}".encode())
    old = time.time() - FRESH_S - 60
    for path in function_dir.iterdir():
        os.utime(path, (old, old))
    add_variant(function_dir, f"names {kept.name}".encode())
    assert companions(function_dir) == (kept,)
    assert not orphan.exists()
    assert len(variants(function_dir)) == MAX_VARIANTS
