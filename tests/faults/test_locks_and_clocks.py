"""Locks that lie, holders that died, clocks that are off, names seen late, crowds: nothing goes wrong."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support import crowds, fault_actions
from tests.support.backends import SlowEyes
from tests.support.fault_actions import DAY_S, laid_out
from tests.support.faults import Trial, tried
from tests.support.sealed_launches import fetch_laid, files_of, launch_key, lay_launch, publish_laid
from tests.support.stored import FUNCTIONS, LAUNCH_KEY, OFF, make_partition, open_store
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.cache_dir.private_files import temporary_name
from warmrank.cache_store.cache_dir.single_flight import LOCK_NAME, LOCK_TIMEOUT_S, LOCKS
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.steps import Step
from warmrank.cache_store.store import Store

pytestmark = pytest.mark.faults

SEED = 12
HOUR_S = 3600.0
BEFORE_THE_WAIT_IS_OVER_S = LOCK_TIMEOUT_S / 2


@pytest.fixture
def root(room: Path) -> Path:
    source = room / "source"
    publish_laid(open_store(room / "store"), source, SEED, lay_launch(source, SEED, 2))
    return room / "store"


@pytest.fixture
def cache(room: Path) -> Path:
    return room / "cache"


def fetch(root: Path, cache: Path, **plan: object) -> Trial:
    """A fetch that must not wait for the lock: a wait would outlast the trial's time."""
    return tried(
        fault_actions.fetch, plan, time_s=BEFORE_THE_WAIT_IS_OVER_S, store=root, cache=cache, seed=SEED
    )


def check_fetched(trial: Trial, cache: Path) -> None:
    assert (trial.overran, trial.bug, trial.error, trial.result) == (False, None, None, 2)
    assert laid_out(cache) == files_of(SEED, 2)


def lock_path(cache: Path) -> Path:
    path = cache / LOCKS / LOCK_NAME
    for directory in (cache, path.parent):
        directory.mkdir(mode=0o700)
    return path


def test_lock_of_a_holder_that_was_killed_is_free_at_once(root, room, fault_rounds):
    """SIGKILL while the lock is held; the next fetch does not wait."""
    for turn in range(fault_rounds):
        cache = room / f"cache{turn}"
        killed = fetch(root, cache, kill_at=(Step.FETCH_STAGED.value, 1))
        assert killed.exit == -signal.SIGKILL
        assert (cache / LOCKS / LOCK_NAME).exists()
        check_fetched(fetch(root, cache), cache)


def test_lock_that_is_never_released_delays_a_fetch_for_a_bounded_time(root, cache):
    """Its holder lives and does nothing: after the time-out the fetch goes on beside it."""
    with FileLock(lock_path(cache)):
        store = open_store(root)
        record = store.launches(launch_key(SEED))[0]
        assert store.fetch_partitions(record.partitions, cache, lock_timeout_s=0.01).faults == ()
    assert laid_out(cache) == files_of(SEED, 2)


def test_flock_that_says_yes_to_everybody_keeps_nobody_waiting(root, cache):
    """That the no-op of the next test is one: the lock is held, and the fetch does not notice."""
    with FileLock(lock_path(cache)):
        check_fetched(fetch(root, cache, no_flock=True), cache)


def test_fetchers_at_once_without_a_working_flock_agree(room, fault_rounds):
    """All copy at the same time; the cache directory holds each artifact once, and whole."""
    for turn in range(fault_rounds):
        paths = {name: room / f"{name}{turn}" for name in ("store", "source", "cache")}
        trial = tried(crowds.fetch_at_once, {"no_flock": True}, **paths, seed=SEED, fetchers=8)
        assert (trial.bug, trial.error) == (None, None)
        assert [item["faults"] for item in trial.result] == [[]] * 8
        assert laid_out(paths["cache"]) == files_of(SEED, 2)


@pytest.mark.parametrize("offset_s", [-DAY_S - HOUR_S, -HOUR_S, HOUR_S, DAY_S + HOUR_S])
def test_clock_that_is_off_harms_nothing(room, offset_s, fault_rounds):
    """Files on their way in, of processes that live and of other hosts, stay where they are."""
    for turn in range(fault_rounds):
        paths = {name: room / f"{name}{turn}" for name in ("store", "source", "cache")}
        open_store(paths["store"])
        other_host = temporary_name().replace(os.uname().nodename, "another-host", 1)
        in_flight = [paths["store"] / "tmp" / name for name in (temporary_name(), other_host)]
        for path in in_flight:
            path.mkdir(parents=True)
        launch = {**paths, "seed": SEED, "manifests": lay_launch(paths["source"], SEED, 2)}
        trial = tried(fault_actions.publish_and_fetch, {"clock_offset_s": offset_s}, **launch)
        assert (trial.overran, trial.bug, trial.error) == (False, None, None)
        assert laid_out(paths["cache"]) == files_of(SEED, 2)
        assert all(path.is_dir() for path in in_flight)
        survey = tried(fault_actions.survey, store=paths["store"], cache=paths["cache"], seed=SEED)
        assert (survey.result["problems"], survey.result["launches"]) == ([], 1)


def test_later_launch_by_a_clock_an_hour_behind_is_still_fetched(room):
    """Two launches under one key, the second by a clock an hour behind: both stand, both are whole."""
    paths = {name: room / name for name in ("store", "source")}
    ahead = tried(fault_actions.publish, {"clock_offset_s": HOUR_S}, **paths, seed=SEED)
    behind = tried(fault_actions.publish, {"clock_offset_s": -HOUR_S}, **paths, seed=SEED, world_size=3)
    assert (ahead.error, behind.error, ahead.bug, behind.bug) == (None, None, None, None)
    store = open_store(paths["store"])
    assert sorted(record.world_size for record in store.launches(launch_key(SEED))) == [2, 3]
    for record in store.launches(launch_key(SEED)):
        outcome = store.fetch_partitions(record.partitions, room / f"cache{record.world_size}")
        assert outcome.faults == ()


WORLD_SIZE = 2
BLIND_LOOKS = (0, 1, 2, 3, 5, 8)
ENOUGH_ATTEMPTS = 60


def client(root: Path, blind_looks: int) -> Store:
    return Store(SlowEyes(DirectoryBackend(root), blind_looks), trust=OFF, location=str(root))


@pytest.mark.parametrize("blind_looks", BLIND_LOOKS)
def test_launch_that_another_node_published_becomes_visible_whole(room, blind_looks, fault_rounds):
    """A fetch is a miss until everything is visible, and then exactly what was published."""
    for seed in range(fault_rounds):
        root, cache = room / f"store{seed}", room / f"cache{seed}"
        source = room / f"source{seed}"
        publish_laid(open_store(root), source, seed, lay_launch(source, seed, WORLD_SIZE))
        reader = client(root, blind_looks)
        expected = files_of(seed, WORLD_SIZE)
        for _ in range(ENOUGH_ATTEMPTS):
            num_partitions, errors = fetch_laid(reader, cache, seed)
            assert all(data == expected[name] for name, data in laid_out(cache).items())
            if num_partitions and not errors:
                break
        assert laid_out(cache) == expected
        assert open_store(root).verify().faults == ()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("blind_looks", BLIND_LOOKS)
def test_publishers_that_do_not_see_each_other_agree(room, blind_looks, fault_rounds):
    """Two publish one launch by turns, each blind to the other: everything is there once, and whole."""
    for seed in range(fault_rounds):
        root = room / f"store{seed}"
        clients = [client(root, blind_looks) for _ in range(2)]
        sources = [room / f"source{seed}-{number}" for number in range(2)]
        manifests = [lay_launch(source, seed, WORLD_SIZE) for source in sources]
        randomness = random.Random(seed)
        for attempt in range(ENOUGH_ATTEMPTS):
            number = randomness.randrange(2)
            try:
                publish_laid(clients[number], sources[number], seed, manifests[number])
            except StoreError:
                assert attempt < ENOUGH_ATTEMPTS - 10
        report = open_store(root).verify()
        assert (report.faults, report.num_manifests) == ((), WORLD_SIZE)
        assert list((root / "quarantine").glob("*")) == []


def test_publisher_that_does_not_see_the_first_one_leaves_it_in_place(room):
    """Other bytes under one key: the first publisher's stay, also when the second looked too early to see."""
    root = room / "store"
    first = open_store(root).publish_partition(LAUNCH_KEY, make_partition(room / "a"), room / "a")
    other = make_partition(room / "b", functions=FUNCTIONS | {"Llama.decode": b"different"})
    second = client(root, 1).publish_partition(LAUNCH_KEY, other, room / "b")
    assert (second.created, second.ref, second.conflicts) == (False, first.ref, ("Llama.decode",))
    assert open_store(root).verify().faults == ()


WRITERS = 64
RACES_A_ROUND = 5
READS_A_ROUND = 5_000
READERS = 4
FETCHERS = 256
RANKS = 1_024
FULL_ROUNDS = 200
MEMORY_LIMIT_BYTES = 200 << 20
ENOUGH_S = 3600.0


def ask(action: Callable[..., Any], **arguments: Any) -> Any:
    trial = tried(action, time_s=ENOUGH_S, **arguments)
    assert (trial.exit, trial.bug, trial.error) == (0, None, None)
    return trial.result


def scaled(full: int, least: int, rounds: int) -> int:
    """All of a crowd in a full run, some of it in a short one."""
    return max(least, min(full, full * rounds // FULL_ROUNDS))


def test_of_64_writers_of_one_name_one_wins(room, fault_rounds):
    """16 processes of four threads, in step; the winner's bytes are those that stand."""
    rounds = RACES_A_ROUND * fault_rounds
    processes = WRITERS // crowds.THREADS
    assert ask(crowds.race_for_names, store=room, processes=processes, rounds=rounds) == []


def test_of_publishers_that_disagree_one_wins(room, fault_rounds):
    """Other bytes under one key: one manifest is created, and everybody's report names that one."""
    rounds = max(2, fault_rounds // 10)
    processes = scaled(WRITERS, 8, fault_rounds)
    said = ask(crowds.race_for_manifests, root=room, processes=processes, rounds=rounds)
    assert said == {"created": rounds, "versions": [1] * rounds, "faults": []}


def test_readers_never_see_a_part(room, fault_rounds):
    """Blobs come, go into the trash and come back; a reader has all bytes of one, or none."""
    reads = READS_A_ROUND * fault_rounds // READERS
    said = ask(crowds.read_while_others_write, store=room, readers=READERS, reads=reads)
    assert said["partial"] == []
    assert said["moves"] > 0
    assert 0 < said["found"] < said["done"]


@pytest.mark.slow
def test_fetchers_at_once_share_one_copy_of_the_work(room, fault_rounds):
    """All ranks of a node fetch: every blob is read once, everybody finds everything, memory is bounded."""
    fetchers = scaled(FETCHERS, 16, fault_rounds)
    for turn in range(max(3, fault_rounds // 20)):  # fewer could agree by chance
        paths = {name: room / f"{name}{turn}" for name in ("store", "source", "cache")}
        said = ask(crowds.fetch_at_once, **paths, seed=SEED, fetchers=fetchers)
        assert [item["faults"] for item in said] == [[]] * fetchers
        assert {item["partitions"] for item in said} == {2}
        assert laid_out(paths["cache"]) == files_of(SEED, 2)
        readers = [item["read"] for item in said if item["read"]]
        assert readers == [sum(len(data) for data in set(files_of(SEED, 2).values()))]
        assert max(item["memory"] for item in said) < MEMORY_LIMIT_BYTES


def test_launch_of_1024_ranks_takes_bounded_memory(room, fault_rounds):
    """Publish, commit and fetch of every rank's partition, in one process."""
    world_size = scaled(RANKS, 32, fault_rounds)
    paths = {name: Path(room / name) for name in ("store", "source", "cache")}
    said = ask(crowds.launch_of_many_ranks, **paths, seed=SEED, world_size=world_size)
    assert (said["partitions"], said["problems"]) == (world_size, [])
    assert said["memory"] < MEMORY_LIMIT_BYTES
    assert laid_out(paths["cache"]) == files_of(SEED, world_size)
