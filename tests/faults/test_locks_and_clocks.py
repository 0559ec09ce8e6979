"""Locks that lie, holders that died, clocks that are off: waits are bounded, and nothing goes wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.fault_child import DAY_S, laid_out
from tests.support.faults import Forker, Trial
from tests.support.sealed_launches import files_of, launch_key, lay_launch, publish_laid
from tests.support.stored import open_store
from warmrank.cache_store.cache_dir.private_files import temporary_name
from warmrank.cache_store.cache_dir.single_flight import LOCK_NAME, LOCK_TIMEOUT_S, LOCKS
from warmrank.cache_store.steps import Step

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


def fetch(forker: Forker, root: Path, cache: Path, **plan: object) -> Trial:
    """A fetch that must not wait for the lock: a wait would outlast the trial's time."""
    return forker.run("fetch", plan, time_s=BEFORE_THE_WAIT_IS_OVER_S, store=root, cache=cache, seed=SEED)


def check_fetched(trial: Trial, cache: Path) -> None:
    assert (trial.overran, trial.bug, trial.error, trial.result) == (False, None, None, 2)
    assert laid_out(cache) == files_of(SEED, 2)


def lock_path(cache: Path) -> Path:
    path = cache / LOCKS / LOCK_NAME
    for directory in (cache, path.parent):
        directory.mkdir(mode=0o700)
    return path


def test_lock_of_a_holder_that_was_killed_is_free_at_once(forker, root, room, fault_rounds):
    """SIGKILL while the lock is held; the next fetch does not wait."""
    for turn in range(fault_rounds):
        cache = room / f"cache{turn}"
        killed = fetch(forker, root, cache, kill_at=(Step.FETCH_STAGED.value, 1))
        assert killed.exit == -signal.SIGKILL
        assert (cache / LOCKS / LOCK_NAME).exists()
        check_fetched(fetch(forker, root, cache), cache)


def test_lock_that_is_never_released_delays_a_fetch_for_a_bounded_time(root, cache):
    """Its holder lives and does nothing: after the time-out the fetch goes on beside it."""
    with FileLock(lock_path(cache)):
        store = open_store(root)
        record = store.launches(launch_key(SEED))[0]
        assert store.fetch_partitions(record.partitions, cache, lock_timeout_s=0.01).faults == ()
    assert laid_out(cache) == files_of(SEED, 2)


def test_flock_that_says_yes_to_everybody_keeps_nobody_waiting(forker, root, cache):
    """That the no-op of the next test is one: the lock is held, and the fetch does not notice."""
    with FileLock(lock_path(cache)):
        check_fetched(fetch(forker, root, cache, no_flock=True), cache)


def test_fetchers_at_once_without_a_working_flock_agree(forker, room, fault_rounds):
    """All copy at the same time; the cache directory holds each artifact once, and whole."""
    for turn in range(fault_rounds):
        paths = {name: room / f"{name}{turn}" for name in ("store", "source", "cache")}
        trial = forker.run("fetch_at_once", {"no_flock": True}, **paths, seed=SEED, fetchers=8)
        assert (trial.bug, trial.error) == (None, None)
        assert [item["faults"] for item in trial.result] == [[]] * 8
        assert laid_out(paths["cache"]) == files_of(SEED, 2)


@pytest.mark.parametrize("offset_s", [-DAY_S - HOUR_S, -HOUR_S, HOUR_S, DAY_S + HOUR_S])
def test_clock_that_is_off_harms_nothing(forker, room, offset_s, fault_rounds):
    """Files on their way in, of processes that live and of other hosts, stay where they are."""
    for turn in range(fault_rounds):
        paths = {name: room / f"{name}{turn}" for name in ("store", "source", "cache")}
        open_store(paths["store"])
        other_host = temporary_name().replace(os.uname().nodename, "another-host", 1)
        in_flight = [paths["store"] / "tmp" / name for name in (temporary_name(), other_host)]
        for path in in_flight:
            path.mkdir(parents=True)
        trial = forker.run("publish_and_fetch", {"clock_offset_s": offset_s}, **paths, seed=SEED)
        assert (trial.overran, trial.bug, trial.error) == (False, None, None)
        assert laid_out(paths["cache"]) == files_of(SEED, 2)
        assert all(path.is_dir() for path in in_flight)
        survey = forker.run("survey", store=paths["store"], cache=paths["cache"], seed=SEED)
        assert (survey.result["problems"], survey.result["launches"]) == ([], 1)


def test_later_launch_by_a_clock_an_hour_behind_is_still_fetched(forker, room):
    """Two launches under one key, the second by a clock an hour behind: both stand, both are whole."""
    paths = {name: room / name for name in ("store", "source")}
    ahead = forker.run("publish", {"clock_offset_s": HOUR_S}, **paths, seed=SEED)
    behind = forker.run("publish", {"clock_offset_s": -HOUR_S}, **paths, seed=SEED, world_size=3)
    assert (ahead.error, behind.error, ahead.bug, behind.bug) == (None, None, None, None)
    store = open_store(paths["store"])
    assert sorted(record.world_size for record in store.launches(launch_key(SEED))) == [2, 3]
    for record in store.launches(launch_key(SEED)):
        outcome = store.fetch_partitions(record.partitions, room / f"cache{record.world_size}")
        assert outcome.faults == ()
