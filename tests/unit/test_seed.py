"""Seeding nodes from the store: partitions, and files that engines' tools keep on a node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import House
from tests.support.node_artifacts import destinations, publish_nodes, write
from tests.support.stored import (
    ENVIRONMENT,
    LAUNCH_KEY,
    backend_of,
    blob_path,
    make_partition,
    open_store,
    overwrite,
    publish_launch,
    stored,
)
from tests.support.stored import tree as all_files
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
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.gc.evict import EvictPolicy
from warmrank.cache_store.layout import USED, split_used_name
from warmrank.cache_store.seed import MAX_LAUNCHES, SeedReport, Wanted, seed
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.orchestrator.launch.report import from_json, to_json
from warmrank.worker.rank.rank_worker import RankWorker

EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
OTHER_ENVIRONMENT = ENVIRONMENT | {"torch": "2.13.1"}


def run(store: Store, cache: Path, **changes: Any) -> SeedReport:
    arguments: dict[str, Any] = {
        "launch_key": LAUNCH_KEY,
        "environment": ENVIRONMENT,
        "world_size": 2,
        "ranks": None,
    }
    return seed(store, Wanted(**(arguments | changes)), cache)


def tree(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_files(root).items() if name != UNVERIFIED}


def partitions(report: SeedReport) -> list[str]:
    return [item.partition for item in report.partitions]


def test_seed_of_another_world_lays_out_each_distinct_set_once(store, source, cache):
    last_stage = {"Llama.decode": b"last pipeline stage"}
    publish_launch(store, source, world_size=4, functions={3: last_stage})
    report = run(store, cache, world_size=8, ranks=(6, 7))
    assert (report.found, report.world_size) == (True, 4)
    assert partitions(report) == ["world4global_rank0", "world4global_rank3"]


def test_seed_of_a_node_and_then_of_another_world_which_takes_of_equal_sets_the_one_there(
    store, source, cache
):
    publish_launch(store, source, world_size=4)
    report = run(store, cache, world_size=4, ranks=(2, 3))
    assert partitions(report) == ["world4global_rank2", "world4global_rank3"]
    report = run(store, cache, world_size=8, ranks=(6, 7))
    assert partitions(report) == ["world4global_rank2"]
    assert [item.bytes_copied for item in report.partitions] == [0]


@pytest.mark.parametrize("newer", [False, True])
def test_seed_takes_other_worlds_beside_its_own_only_where_they_are_newer(store, tmp_path, cache, newer):
    changed = {rank: {"Llama.decode": b"of changed sources"} for rank in range(4)}
    of_sizes: dict[int, Any] = {2: {}, 4: {"functions": changed}}
    for size, created in zip((2, 4) if newer else (4, 2), (EARLY, LATE), strict=True):
        publish_launch(store, tmp_path / str(size), world_size=size, created=created, **of_sizes[size])
    report = run(store, cache, world_size=2, ranks=(0, 1))
    assert report.world_size == 2
    there = ["world2global_rank0", "world2global_rank1", *(["world4global_rank0"] if newer else [])]
    assert sorted(partitions(report)) == there


def publish_texts(store: Store, directory: Path, *texts: bytes) -> None:
    for number, text in enumerate(texts):
        # Every launch has a provenance of its own, as other sources do.
        functions = {0: {f"L{number}.decode": text}}
        created = f"2026-01-{number + 1:02}T00:00:00+00:00"
        publish_launch(store, directory / f"{number}", functions=functions, created=created)


def test_seed_puts_the_newest_first_and_earlier_ones_beside_it(store, cache, tmp_path):
    publish_texts(store, tmp_path, b"old", b"newer", b"newest")
    report = run(store, cache, world_size=1)
    assert list(tree(cache).values()) == [b"newest", b"newer", b"old"]
    assert report.reason.endswith("made 2026-01-03 00:00 UTC, and 2 earlier")


def test_seed_lays_out_a_bounded_number_of_launches(store, cache, tmp_path):
    publish_texts(store, tmp_path, *(f"{number}".encode() for number in range(MAX_LAUNCHES + 2)))
    run(store, cache, world_size=1)
    assert sorted(tree(cache).values()) == [f"{number}".encode() for number in range(2, MAX_LAUNCHES + 2)]


def test_seed_takes_no_launch_of_another_environment(store, source, cache):
    publish_launch(store, source, world_size=2, environment=OTHER_ENVIRONMENT)
    report = run(store, cache)
    assert (report.found, report.partitions, report.faults) == (False, (), ())
    assert "torch 2.13.1 -> 2.13.0" in report.reason
    assert "same components" not in report.reason
    assert tree(cache) == {}


def test_seed_goes_on_past_a_damaged_blob(store, root, source, cache):
    publish_launch(store, source, world_size=2, functions={1: {"Llama.decode": b"rank one"}})
    overwrite(blob_path(root, b"rank one"), b"rank 0ne")
    report = run(store, cache)
    assert report.found
    assert partitions(report) == ["world2global_rank0"]
    assert not [name for name in tree(cache) if "global_rank1" in name]
    assert ["corrupt" in fault for fault in report.faults] == [True]
    assert len(stored(root, "quarantine")) == 2


def test_seed_goes_on_past_a_damaged_manifest_of_another_world(store, root, source, cache):
    publish_launch(store, source, world_size=2)
    overwrite(stored(root, "ac")[0], b"")
    report = run(store, cache, world_size=4)
    assert (len(report.partitions), len(report.faults)) == (1, 1)


def test_seed_of_another_world_reads_a_bounded_number_of_manifests(store, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("warmrank.cache_store.seed.MAX_OTHER_RANKS", 2)
    publish_texts(store, tmp_path, b"old", b"newer", b"newest")
    run(store, cache, world_size=2)
    assert list(tree(cache).values()) == [b"newest", b"newer"]


def test_seed_notes_the_use_of_the_newest_launch_only(store, root, cache, tmp_path):
    publish_texts(store, tmp_path, b"old", b"newest")
    newest = next(iter(store.newest_launches())).name
    run(store, cache, world_size=1)
    run(store, cache, world_size=1)
    (mark,) = backend_of(store).list(USED)
    assert (split_used_name(mark.name) or ("",))[0] == newest


def test_seed_goes_on_where_its_use_cannot_be_noted(store, root, source, cache, monkeypatch):
    publish_launch(store, source)

    def refuse(files: Any) -> None:
        raise StoreUnavailable(what="store", where=str(root), reason="Read-only file system")

    monkeypatch.setattr(backend_of(store), "put_new", refuse)
    assert run(store, cache, world_size=1).faults == ()
    assert tree(cache) == tree(source)


def test_seed_fails_where_a_required_place_is_away(store, root, source, cache, monkeypatch):
    publish_launch(store, source)

    def away(name: str) -> None:
        raise StoreUnavailable(what="store", where=str(root), reason="silent", required=True)

    monkeypatch.setattr(backend_of(store), "open", away)
    with pytest.raises(StoreUnavailable, match="silent"):
        run(store, cache, world_size=1)


def test_seed_takes_no_manifest_but_the_pinned_one(store, root, source, cache):
    publish_launch(store, source, world_size=1)
    stored(root, "ac")[0].unlink()
    manifest = make_partition(source, created=LATE)
    store.publish_partition(key_of({"launch": LAUNCH_KEY, **ENVIRONMENT}), manifest, source)
    report = run(store, cache, world_size=1)
    assert ["conflict" in fault for fault in report.faults] == [True]


def test_seed_reports_records_that_could_not_be_used(store, root, source, cache):
    publish_launch(store, source, world_size=2)
    report = run(open_store(root, Trust(policy="require")), cache)
    assert not report.found
    assert "unsigned" in report.reason
    assert len(report.faults) == 1


def test_seed_of_a_store_that_fails_is_a_miss(store, root, cache, monkeypatch):
    def fail(prefix: str) -> None:
        raise StoreUnavailable(what="listing", where=str(root), reason="Stale file handle")

    monkeypatch.setattr(backend_of(store), "list", fail)
    report = run(store, cache)
    assert not report.found
    assert "Stale file handle" in report.reason
    assert len(report.faults) == 1


TWO = {0: b"first", 1: b"second"}


def publish_two_environments(store: Store, source: Path) -> None:
    functions = {rank: {"forward": data} for rank, data in TWO.items()}
    publish_launch(store, source, world_size=2, functions=functions, elsewhere={1: OTHER_ENVIRONMENT})


@pytest.mark.parametrize(("environment", "rank"), [(ENVIRONMENT, 0), (OTHER_ENVIRONMENT, 1)])
@pytest.mark.parametrize("ranks", [None, (0,), (1,), (0, 1)])
def test_seed_lays_out_the_partitions_that_were_made_in_its_environment(
    store, source, cache, environment, rank, ranks
):
    publish_two_environments(store, source)
    report = run(store, cache, environment=environment, ranks=ranks)
    assert (report.found, report.faults) == (True, ())
    assert partitions(report) == [f"world2global_rank{rank}"]
    assert [*tree(cache).values()] == [TWO[rank]]


ADD, MUL = "operators/kernel_cache/add.o", "operators/kernel_cache/mul.o"


def seed_node(store: Store, node: Path, **changes: Any) -> SeedReport:
    """Seed a node, which has its cache directory and its tools' directories below ``node``."""
    return run(store, node / "cache", **{"world_size": 4, "node_caches": destinations(node)} | changes)


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
        report = seed_node(store, node, ranks=(first, first + 1))
        assert placed(node) == {ADD: expected}
        assert (report.node.num_fetched, report.node.num_placed, report.node.skipped) == (1, 1, ())


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_another_world_gets_those_of_each_distinct_set_of_artifacts(store, source, node, world_size):
    functions = {rank: {"M.f": b"stage 0" if rank < 2 else b"stage 1"} for rank in range(4)}
    nodes = {0: {ADD: b"of stage 0"}, 2: {MUL: b"of stage 1"}}
    publish_nodes(store, source, nodes, world_size=4, functions=functions)
    seed_node(store, node, world_size=world_size, ranks=tuple(range(world_size)))
    assert placed(node) == {ADD: b"of stage 0", MUL: b"of stage 1"}


def test_what_is_gone_of_the_newest_launch_comes_from_an_earlier_one(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"early", MUL: b"early"}}, world_size=4, created=EARLY)
    publish_nodes(store, source, {0: {ADD: b"late", MUL: b"late too"}}, world_size=4, created=LATE)
    blob_path(root, b"late").unlink()
    report = seed_node(store, node, ranks=(0, 1)).node
    assert placed(node) == {ADD: b"early", MUL: b"late too"}
    assert ADD in report.skipped[0]


def test_damaged_blob_of_a_node_artifact_is_never_placed(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"add"}}, world_size=4)
    overwrite(blob_path(root, b"add"), b"bad")
    report = seed_node(store, node, ranks=(0, 1))
    assert (len(report.partitions), placed(node), kept_files(node / "cache")) == (2, {}, ())
    assert "corrupt" in report.node.skipped[0]


def test_evict_takes_node_artifacts_with_their_launch_and_keeps_those_of_others(store, root, source):
    for created, data in ((EARLY, b"early"), (LATE, b"late")):
        publish_nodes(store, source, {0: {ADD: data}}, world_size=2, created=created)
    store.evict(EvictPolicy(older_than_s=0.0, keep=1, grace_s=0.0))
    assert not blob_path(root, b"early").exists()
    assert blob_path(root, b"late").exists()


@pytest.mark.slow
def test_new_node_finds_what_another_ones_tools_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiles: list[Path] = []
    first_call = RankWorker.first_call

    def with_tool(worker: RankWorker, place: int) -> Any:
        kernel = Path.home() / "atc_data/kernel_cache/Ascend910/add.o"
        if not kernel.exists():
            compiles.append(kernel)
            write(kernel, b"kernel")
        assert kernel.read_bytes() == b"kernel"
        return first_call(worker, place)

    monkeypatch.setattr(RankWorker, "first_call", with_tool)
    tools = {"operators": {"path": "~/atc_data", "patterns": ["kernel_cache*/*"]}}
    house = House(tmp_path, node_caches=tools)
    found = []
    for node, num_ranks in (("one", 2), ("two", 4), ("three", 4)):
        monkeypatch.setenv("HOME", str(tmp_path / "homes" / node))
        report = from_json(to_json(house.launch(num_ranks, node=node)))
        (artifacts,) = (each.artifacts for each in report.node_artifacts)
        found.append((artifacts.num_fetched, artifacts.num_placed, artifacts.num_new, artifacts.num_files))
    # What came from the store stays in the manifests of those who use it.
    assert found == [(0, 0, 1, 1), (1, 1, 0, 1), (1, 1, 0, 1)]
    assert (len(compiles), report.totals.num_compiled) == (1, 0)


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
