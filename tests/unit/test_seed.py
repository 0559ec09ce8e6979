from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.stored import (
    ENVIRONMENT,
    LAUNCH_KEY,
    make_partition,
    open_store,
    publish_launch,
    stored,
)
from tests.support.stored import tree as all_files
from warmrank.cache_store.cache_dir.marks import UNVERIFIED
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.keys import key_of
from warmrank.cache_store.records import launches as stored_launches
from warmrank.cache_store.records.manifest import LaunchRecord, parse_launch_record
from warmrank.cache_store.seed import MAX_LAUNCHES, SeedReport, Wanted, seed
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store

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


def test_seed_lays_out_the_partitions_of_a_node(store, source, cache):
    publish_launch(store, source, world_size=4)
    report = run(store, cache, world_size=4, ranks=(2, 3))
    assert partitions(report) == ["world4global_rank2", "world4global_rank3"]


def test_seed_of_another_world_lays_out_each_distinct_set_once(store, source, cache):
    last_stage = {"Llama.decode": b"last pipeline stage"}
    publish_launch(store, source, world_size=4, functions={3: last_stage})
    report = run(store, cache, world_size=8, ranks=(6, 7))
    assert (report.found, report.world_size) == (True, 4)
    assert partitions(report) == ["world4global_rank0", "world4global_rank3"]


def publish_texts(store: Store, directory: Path, *texts: bytes) -> None:
    for number, text in enumerate(texts):
        # Every launch has a provenance of its own, as other sources do.
        functions = {0: {f"L{number}.decode": text}}
        created = f"2026-01-{number + 1:02}T00:00:00+00:00"
        publish_launch(store, directory / f"{number}", functions=functions, created=created)


def test_seed_under_require_refuses_an_unverified_directory(store, root, source, cache):
    publish_launch(store, source)
    run(store, cache, world_size=1)
    with pytest.raises(UnusableCache, match="empty this one"):
        run(open_store(root, Trust(policy="require")), cache, world_size=1)


def test_seed_takes_no_launch_of_another_environment(store, source, cache):
    publish_launch(store, source, world_size=2, environment=OTHER_ENVIRONMENT)
    report = run(store, cache)
    assert (report.found, report.partitions, report.faults) == (False, (), ())
    assert "torch 2.13.1 -> 2.13.0" in report.reason
    assert tree(cache) == {}


def test_seed_reads_whole_only_the_launches_that_it_picks(store, cache, tmp_path, monkeypatch):
    publish_texts(store, tmp_path, *(f"{number}".encode() for number in range(MAX_LAUNCHES + 2)))
    read: list[str] = []

    def note(data: bytes, where: str) -> LaunchRecord:
        read.append(where)
        return parse_launch_record(data, where)

    monkeypatch.setattr(stored_launches, "parse_launch_record", note)
    run(store, cache, world_size=1)
    assert len(read) == MAX_LAUNCHES
    assert len(set(store._record_names.values())) == MAX_LAUNCHES


def test_seed_takes_no_manifest_but_the_pinned_one(store, root, source, cache):
    publish_launch(store, source, world_size=1)
    stored(root, "ac")[0].unlink()
    manifest = make_partition(source, created=LATE)
    store.publish_partition(key_of({"launch": LAUNCH_KEY, **ENVIRONMENT}), manifest, source)
    report = run(store, cache, world_size=1)
    assert ["conflict" in fault for fault in report.faults] == [True]


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
