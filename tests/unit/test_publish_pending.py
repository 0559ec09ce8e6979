"""What waits in the cache directory for a store that was away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backends import WaywardBackend, unavailable
from tests.support.stored import CREATED, ENVIRONMENT, LAUNCH_KEY, OFF, make_partition, open_store
from warmrank.cache_store import connect
from warmrank.cache_store import publish_pending as publish_queue
from warmrank.cache_store.backends.places import Circuits, Tier, TieredBackend
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
    publish_pending,
)
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.cache_store.store import Store


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_circuits", Circuits())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def queue_launch(cache: Path, *manifests: PartitionManifest) -> list[str]:
    """Queue a launch of these partitions, and the partitions."""
    keys = [add_partition(cache, LAUNCH_KEY, manifest) for manifest in manifests]
    wait_for(cache, *zip(manifests, keys, strict=True))
    return keys


def wait_for(cache: Path, *members: tuple[PartitionManifest, str]) -> None:
    partitions = tuple(
        AwaitedPartition(partition=manifest.partition, rank=manifest.rank, manifest_key=key)
        for manifest, key in members
    )
    add_launch(
        cache,
        WaitingLaunch(
            launch_key=LAUNCH_KEY,
            identity={"entrypoint": "sample:workload"},
            world_size=len(partitions),
            environment=ENVIRONMENT,
            partitions=partitions,
            created=CREATED,
        ),
    )


def num_waiting(cache: Path) -> tuple[int, int]:
    found = pending(cache)
    return len(found.partitions), len(found.launches)


def test_launch_that_waited_is_whole_in_the_store(store, cache, tmp_path):
    keys = queue_launch(cache, *(make_partition(cache, rank=rank, world_size=2) for rank in range(2)))
    report = publish_pending(store, cache)
    assert (sorted(report.published), len(report.committed), report.kept) == (sorted(keys), 1, {})
    assert num_waiting(cache) == (0, 0)
    (record,) = store.launches(LAUNCH_KEY)
    assert (record.created, record.world_size) == (CREATED, 2)
    outcome = store.fetch_partitions(record.partitions, tmp_path / "fetched")
    assert (len(outcome.partitions), outcome.faults) == (2, ())


def test_launch_waits_for_partitions_of_other_nodes(store, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    mine, theirs = (make_partition(root, rank=rank, world_size=2) for rank, root in enumerate((here, there)))
    key = add_partition(there, LAUNCH_KEY, theirs)
    wait_for(here, (mine, add_partition(here, LAUNCH_KEY, mine)), (theirs, key))
    (reason,) = publish_pending(store, here).kept.values()
    assert "partitions of ranks 1 are not in the store; publish first on their nodes" in reason
    assert (num_waiting(here), store.launches(LAUNCH_KEY)) == ((0, 1), ())
    publish_pending(store, there)
    assert len(publish_pending(store, here).committed) == 1
    assert len(store.launches(LAUNCH_KEY)) == 1


def damage(path: Path) -> None:
    path.write_bytes(b"changed")


@pytest.mark.parametrize(("spoil", "said"), [(Path.unlink, "is gone"), (damage, "is not what was compiled")])
def test_partition_whose_artifact_is_lost_is_dropped_and_so_is_its_launch(
    store: Store, cache: Path, spoil: Callable[[Path], None], said: str
):
    bad, good = make_partition(cache, rank=0, world_size=2), make_partition(cache, rank=1, world_size=2)
    keys = queue_launch(cache, bad, good)
    spoil(cache / bad.artifacts[0].path)
    report = publish_pending(store, cache)
    assert (report.published, report.kept, num_waiting(cache)) == ((keys[1],), {}, (0, 0))
    partition, launch = report.dropped.values()
    assert f"{bad.artifacts[0].path} {said}; the next launch" in partition
    assert launch == "artifacts of ranks 0 are lost"
    assert store.launches(LAUNCH_KEY) == ()


def test_what_only_the_near_place_took_waits_on(cache):
    near, far = WaywardBackend(), WaywardBackend()
    far.failure = unavailable("connection refused", transport=True)
    tiers = TieredBackend([Tier(name="near", backend=near), Tier(name="far", backend=far)])
    queue_launch(cache, make_partition(cache))
    store = Store(tiers, trust=OFF, location="near, far")
    report = publish_pending(store, cache)
    assert ["far is away: connection refused" in reason for reason in report.kept.values()] == [True, True]
    assert num_waiting(cache) == (1, 1)
    assert len(store.launches(LAUNCH_KEY)) == 1


def test_interrupted_between_publish_and_removal_it_is_done_again(store, cache, monkeypatch):
    queue_launch(cache, make_partition(cache))

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("warmrank.cache_store.publish_pending.forget", killed)
        with pytest.raises(KeyboardInterrupt):
            publish_pending(store, cache)
    assert num_waiting(cache) == (1, 1)
    report = publish_pending(store, cache)
    assert (len(report.published), len(report.committed), num_waiting(cache)) == (1, 1, (0, 0))


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


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o644])
def test_file_that_others_may_reach_is_not_used(cache, manifest, mode):
    add_partition(cache, LAUNCH_KEY, manifest)
    (path,) = files(cache)
    path.chmod(mode)
    found = pending(cache)
    assert (found.partitions, ["mode 0600" in line for line in found.problems]) == ({}, [True])


@given(data=st.binary(max_size=200))
def test_any_other_bytes_are_corrupt(data):
    with pytest.raises(Corrupt):
        parse_document(
            WaitingPartition, data, supported_format=publish_queue.FORMAT, what="partition", where="here"
        )


def test_partition_with_a_path_out_of_the_cache_is_a_problem(cache, manifest):
    add_partition(cache, LAUNCH_KEY, manifest)
    (path,) = files(cache)
    path.write_bytes(path.read_bytes().replace(b'"Llama_dynamic', b'"../escaped'))
    found = pending(cache)
    assert (found.partitions, ["'..'" in line for line in found.problems]) == ({}, [True])
