"""Many at once: one winner for each name, no partial read, one copy of work, bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.crowds import THREADS
from tests.support.fault_child import laid_out
from tests.support.faults import Forker
from tests.support.sealed_launches import files_of

pytestmark = pytest.mark.faults

WRITERS = 64
RACES_A_ROUND = 5
READS_A_ROUND = 5_000
READERS = 4
FETCHERS = 256
RANKS = 1_024
FULL_ROUNDS = 200
SEED = 10
MEMORY_LIMIT_BYTES = 200 << 20
ENOUGH_S = 3600.0


def ask(forker: Forker, action: str, **arguments: Any) -> Any:
    trial = forker.run(action, time_s=ENOUGH_S, **arguments)
    assert (trial.exit, trial.bug, trial.error) == (0, None, None)
    return trial.result


def scaled(full: int, least: int, rounds: int) -> int:
    """All of a crowd in a full run, some of it in a short one."""
    return max(least, min(full, full * rounds // FULL_ROUNDS))


def test_of_64_writers_of_one_name_one_wins(forker, room, fault_rounds):
    """16 processes of four threads, in step; the winner's bytes are those that stand."""
    rounds = RACES_A_ROUND * fault_rounds
    processes = WRITERS // THREADS
    assert ask(forker, "race_for_names", store=room, processes=processes, rounds=rounds) == []


def test_of_publishers_that_disagree_one_wins(forker, room, fault_rounds):
    """Other bytes under one key: one manifest is created, and everybody's report names that one."""
    rounds = max(2, fault_rounds // 10)
    processes = scaled(WRITERS, 8, fault_rounds)
    said = ask(forker, "race_for_manifests", root=room, processes=processes, rounds=rounds)
    assert said == {"created": rounds, "versions": [1] * rounds, "faults": []}


def test_readers_never_see_a_part(forker, room, fault_rounds):
    """Blobs come, go into the trash and come back; a reader has all bytes of one, or none."""
    reads = READS_A_ROUND * fault_rounds // READERS
    said = ask(forker, "read_while_others_write", store=room, readers=READERS, reads=reads)
    assert said["partial"] == []
    assert said["moves"] > 0
    assert 0 < said["found"] < said["done"]


@pytest.mark.slow
def test_fetchers_at_once_share_one_copy_of_the_work(forker, room, fault_rounds):
    """All ranks of a node fetch: every blob is read once, everybody finds everything, memory is bounded."""
    fetchers = scaled(FETCHERS, 16, fault_rounds)
    for turn in range(max(3, fault_rounds // 20)):  # fewer could agree by chance
        paths = {name: room / f"{name}{turn}" for name in ("store", "source", "cache")}
        said = ask(forker, "fetch_at_once", **paths, seed=SEED, fetchers=fetchers)
        assert [item["faults"] for item in said] == [[]] * fetchers
        assert {item["partitions"] for item in said} == {2}
        assert laid_out(paths["cache"]) == files_of(SEED, 2)
        readers = [item["read"] for item in said if item["read"]]
        assert readers == [sum(len(data) for data in set(files_of(SEED, 2).values()))]
        assert max(item["memory"] for item in said) < MEMORY_LIMIT_BYTES


def test_launch_of_1024_ranks_takes_bounded_memory(forker, room, fault_rounds):
    """Publish, commit and fetch of every rank's partition, in one process."""
    world_size = scaled(RANKS, 32, fault_rounds)
    paths = {name: Path(room / name) for name in ("store", "source", "cache")}
    said = ask(forker, "launch_of_many_ranks", **paths, seed=SEED, world_size=world_size)
    assert (said["partitions"], said["problems"]) == (world_size, [])
    assert said["memory"] < MEMORY_LIMIT_BYTES
    assert laid_out(paths["cache"]) == files_of(SEED, world_size)
