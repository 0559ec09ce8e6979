from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import CREATED, ENVIRONMENT, LAUNCH_KEY, make_partition
from warmrank.cache_store import publish_pending as publish_queue
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.publish_pending import (
    QUEUE,
    AwaitedPartition,
    WaitingLaunch,
    WaitingPartition,
    add_launch,
    add_partition,
    pending,
)
from warmrank.cache_store.records.manifest import PartitionManifest

KEYS = st.binary(min_size=1, max_size=8).map(lambda data: digest_bytes(data).sha256)


def waiting_launch(*keys: str, launch_key: str = LAUNCH_KEY, created: str = CREATED) -> WaitingLaunch:
    return WaitingLaunch(
        launch_key=launch_key,
        identity={"entrypoint": "sample:workload"},
        world_size=len(keys),
        environment=ENVIRONMENT,
        partitions=tuple(
            AwaitedPartition(partition=f"world{len(keys)}global_rank{rank}", rank=rank, manifest_key=key)
            for rank, key in enumerate(keys)
        ),
        created=created,
    )


def files(cache: Path) -> list[Path]:
    return sorted((cache / QUEUE).iterdir())


@pytest.fixture
def manifest(cache: Path) -> PartitionManifest:
    return make_partition(cache)


def test_partition_waits_with_all_that_it_needs(cache, manifest):
    key = add_partition(cache, LAUNCH_KEY, manifest)
    (waiting,) = pending(cache).partitions.values()
    assert (waiting.key, waiting.launch_key, waiting.manifest) == (key, LAUNCH_KEY, manifest)


def test_same_partition_waits_once_as_it_was_last(cache, manifest):
    add_partition(cache, LAUNCH_KEY, manifest)
    later = manifest.model_copy(update={"created": "2026-02-01T12:00:00+00:00"})
    add_partition(cache, LAUNCH_KEY, later)
    assert [waiting.manifest for waiting in pending(cache).partitions.values()] == [later]


def test_newest_of_each_rank_and_of_launches_are_kept(cache, manifest, monkeypatch):
    monkeypatch.setattr(publish_queue, "MAX_WAITING", 2)
    other_rank = make_partition(cache, rank=1, world_size=2)
    kept = add_partition(cache, "ff" * 32, other_rank)
    keys, launches = [], []
    for number in range(4):
        keys.append(add_partition(cache, digest_bytes(bytes([number])).sha256, manifest))
        launches.append(waiting_launch("ab" * 32, created=f"2026-01-31T12:00:0{number}+00:00"))
        add_launch(cache, launches[-1])
        for path in files(cache):  # times so far apart that no clock blurs them
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))
    found = pending(cache)
    assert {waiting.key for waiting in found.partitions.values()} == {kept, *keys[-2:]}
    assert list(found.launches.values()) == launches[-2:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b'"format":1', b'"format":2', 1),
        lambda data: data.replace(b'"created"', b'"creator"'),
        lambda data: data.replace(b"2026", b"2027"),
        lambda data: b"",
    ],
    ids=["truncated", "newer", "unknown field", "other content", "empty"],
)
def test_damaged_launch_is_a_problem_and_stays(cache, damage):
    add_launch(cache, waiting_launch("ab" * 32))
    (path,) = files(cache)
    path.write_bytes(damage(path.read_bytes()))
    found = pending(cache)
    assert (found.launches, len(found.problems)) == ({}, 1)
    assert str(path) in found.problems[0]
    assert files(cache) == [path]


def test_partition_with_a_path_out_of_the_cache_is_a_problem(cache, manifest):
    add_partition(cache, LAUNCH_KEY, manifest)
    (path,) = files(cache)
    path.write_bytes(path.read_bytes().replace(b'"Llama_dynamic', b'"../escaped'))
    found = pending(cache)
    assert (found.partitions, ["'..'" in line for line in found.problems]) == ({}, [True])


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o644])
def test_file_that_others_may_reach_is_not_used(cache, manifest, mode):
    add_partition(cache, LAUNCH_KEY, manifest)
    (path,) = files(cache)
    path.chmod(mode)
    found = pending(cache)
    assert (found.partitions, ["mode 0600" in line for line in found.problems]) == ({}, [True])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_not_used(cache, manifest):
    add_partition(cache, LAUNCH_KEY, manifest)
    (path,) = files(cache)
    os.chown(path, 12345, -1)
    found = pending(cache)
    assert (found.partitions, ["uid 12345" in line for line in found.problems]) == ({}, [True])


@given(launch_key=KEYS, keys=st.lists(KEYS, min_size=1, max_size=4))
def test_launch_round_trips(launch_key, keys):
    launch = waiting_launch(*keys, launch_key=launch_key)
    found = parse_document(
        WaitingLaunch, launch.to_bytes(), supported_format=publish_queue.FORMAT, what="launch", where="here"
    )
    assert found == launch


@given(data=st.binary(max_size=200))
def test_any_other_bytes_are_corrupt(data):
    with pytest.raises(Corrupt):
        parse_document(
            WaitingPartition, data, supported_format=publish_queue.FORMAT, what="partition", where="here"
        )
