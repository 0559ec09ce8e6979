"""Publish and fetch: blobs, then a manifest; verified copies; what waits for a store that was away."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from filelock import FileLock

from tests.support.backends import unavailable
from tests.support.stored import (
    CREATED,
    ENVIRONMENT,
    FUNCTIONS,
    LAUNCH_KEY,
    OFF,
    backend_of,
    blob_path,
    function_dir,
    make_partition,
    open_store,
    overwrite,
    stored,
)
from tests.support.stored import tree as all_files
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.cache_dir.local import variants
from warmrank.cache_store.cache_dir.marks import UNVERIFIED
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, StoreUnavailable, Untrusted
from warmrank.cache_store.fetch.fetch import FetchReport, replicate
from warmrank.cache_store.layout import blob_name, manifest_name, trash_name
from warmrank.cache_store.publish import PublishReport
from warmrank.cache_store.publish_pending import (
    QUEUE,
    AwaitedPartition,
    WaitingLaunch,
    add_launch,
    add_partition,
    pending,
    publish_pending,
)
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef, partition_key
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.orchestrator.build.plan import replica

pytestmark = pytest.mark.usefixtures("fresh_process")

DECODE = FUNCTIONS["Llama.decode"]


def publish(store: Store, cache: Path, *, functions: dict[str, bytes] = FUNCTIONS) -> PublishReport:
    return store.publish_partition(LAUNCH_KEY, make_partition(cache, functions=functions), cache)


def test_wrong_digest_is_corrupt_and_nothing_is_published(store, root, cache):
    manifest = make_partition(cache)
    (cache / manifest.artifacts[0].path).write_bytes(b"changed after it was described")
    with pytest.raises(Corrupt, match=manifest.artifacts[0].path):
        store.publish_partition(LAUNCH_KEY, manifest, cache)
    assert (stored(root, "ac"), stored(root, "cas")) == ([], [])


def test_publish_without_a_signing_key_is_refused_before_any_write(root, cache):
    with pytest.raises(Untrusted, match="no_signing_key"):
        publish(open_store(root, Trust(policy="require")), cache)
    assert stored(root, "cas") == []


class Interrupted(DirectoryBackend):
    """Lets something happen before a manifest is put."""

    def __init__(self, root: Path, happen: Callable[[Interrupted], object]) -> None:
        super().__init__(root)
        self.happen = happen

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        if files[0].name.startswith("ac/"):
            self.happen(self)
        return super().put_new(files)


def interrupted(root: Path, happen: Callable[[Interrupted], object]) -> Store:
    return Store(Interrupted(root, happen), trust=OFF, location=str(root))


def evict_blobs(backend: Interrupted) -> None:
    for info in list(backend.list("cas/")):
        backend.move(info.name, trash_name(info.name, datetime(2026, 1, 31, tzinfo=UTC)))


def test_blobs_that_an_evict_took_before_the_manifest_come_back_from_the_trash(root, cache):
    report = publish(interrupted(root, evict_blobs), cache)
    assert (report.created, len(stored(root, "cas")), stored(root, "trash")) == (True, 2, [])
    assert open_store(root).verify().faults == ()


def test_blob_that_nobody_has_any_more_is_named(store, root, cache, tmp_path, caplog):
    publish(store, cache)
    blob_path(root, DECODE).unlink()
    publish(store, tmp_path / "other", functions=FUNCTIONS | {"Llama.decode": b"different"})
    assert f"{blob_path(root, DECODE).name}, which another publisher put, is gone" in caplog.text


def test_names_that_another_publisher_put_are_made_durable_before_the_manifest(root, cache, monkeypatch):
    store = open_store(root)
    manifest = make_partition(cache)
    for entry in manifest.artifacts:
        store.put_blob(cache / entry.path)
    flushed: list[str] = []
    flush_names = DirectoryBackend._flush_names

    def recording(self, names):
        flushed.extend(names)
        flush_names(self, names)

    monkeypatch.setattr(DirectoryBackend, "_flush_names", recording)
    report = store.publish_partition(LAUNCH_KEY, manifest, cache)
    assert report.num_blobs_new == 0
    assert [name.partition("/")[0] for name in flushed] == ["cas", "cas", "ac"]


def test_store_that_fails_between_blobs_and_manifest_is_unavailable_and_can_be_tried_again(root, cache):
    def fail(_: Interrupted) -> None:
        raise StoreUnavailable(what="manifest", where=str(root), reason="No space left on device")

    with pytest.raises(StoreUnavailable):
        publish(interrupted(root, fail), cache)
    with pytest.raises(NotInStore):
        open_store(root).manifest(partition_key(LAUNCH_KEY, make_partition(cache)))
    assert publish(open_store(root), cache).created


NUM = 12


def many(cache: Path, functions: Mapping[str, bytes] = FUNCTIONS) -> tuple[PartitionManifest, ...]:
    """One partition that lies in the cache directory, and others that do not."""
    first = make_partition(cache, rank=0, world_size=NUM, functions=functions)
    return (first, *(replica(first, rank) for rank in range(1, NUM)))


def files_of(manifests: tuple[PartitionManifest, ...], cache: Path) -> dict[str, Path]:
    return {entry.sha256: entry.local_path(cache) for entry in manifests[0].artifacts}


def publish_all(
    store: Store, cache: Path, functions: Mapping[str, bytes] = FUNCTIONS
) -> tuple[PublishReport, ...]:
    manifests = many(cache, functions)
    return store.publish_partitions(LAUNCH_KEY, manifests, files_of(manifests, cache), cache)


def test_other_bytes_under_the_same_keys_are_conflicts_and_those_that_stand_stay(store, cache, tmp_path):
    first = publish_all(store, cache)
    other = publish_all(store, tmp_path / "other", {**FUNCTIONS, "Llama.decode": b"other"})
    assert {report.conflicts for report in other} == {("Llama.decode",)}
    assert [report.ref for report in other] == [report.ref for report in first]


def test_original_that_changed_is_not_copied(cache):
    manifests = many(cache)
    files = files_of(manifests, cache)
    overwrite(next(iter(files.values())), b"changed")
    with pytest.raises(Corrupt, match="build again"):
        replicate(manifests[1:], files, cache)


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


def test_what_only_the_near_place_took_waits_on(cache, places):
    places.far.failure = unavailable("connection refused", transport=True)
    queue_launch(cache, make_partition(cache))
    store = places.store()
    report = publish_pending(store, cache)
    assert ["far is away: connection refused" in reason for reason in report.kept.values()] == [True, True]
    assert num_waiting(cache) == (1, 1)
    assert len(store.launches(LAUNCH_KEY)) == 1


def test_what_a_full_far_place_did_not_take_waits_until_it_does(cache, places):
    places.far.failure = unavailable("No space left on device")
    places.far.fails_on = frozenset({"put_new"})
    queue_launch(cache, make_partition(cache))
    store = places.store()
    partition, launch = publish_pending(store, cache).kept.values()
    assert "far did not take it" in partition
    assert "publish these partitions" in launch
    assert num_waiting(cache) == (1, 1)
    places.far.failure = None
    report = publish_pending(store, cache)
    assert (report.kept, len(report.published), len(report.committed)) == ({}, 1, 1)
    assert (num_waiting(cache), len(store.launches(LAUNCH_KEY))) == ((0, 0), 1)


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
        lambda data: data.replace(b"2026", b"2027"),
    ],
    ids=["truncated", "newer", "other content"],
)
def test_damaged_launch_is_a_problem_and_stays(cache, manifest, damage):
    wait_for(cache, (manifest, "ab" * 32))
    (path,) = files(cache)
    path.write_bytes(damage(path.read_bytes()))
    found = pending(cache)
    assert (found.launches, len(found.problems)) == ({}, 1)
    assert str(path) in found.problems[0]
    assert files(cache) == [path]


def test_file_that_others_may_reach_is_not_used(cache, manifest):
    add_partition(cache, LAUNCH_KEY, manifest)
    (path,) = files(cache)
    path.chmod(0o640)
    found = pending(cache)
    assert (found.partitions, ["mode 0600" in line for line in found.problems]) == ({}, [True])


PREFILL = FUNCTIONS["Llama.prefill"]
ALL_BYTES = len(DECODE) + len(PREFILL)


def published(store: Store, source: Path, **changes: Any) -> PartitionRef:
    return store.publish_partition(LAUNCH_KEY, make_partition(source, **changes), source).ref


@pytest.fixture
def ref(store: Store, source: Path) -> PartitionRef:
    return published(store, source)


def fetch(store: Store, refs: Sequence[PartitionRef], cache: Path, **options: Any) -> tuple[FetchReport, ...]:
    """Reports of a fetch that must not have a fault."""
    outcome = store.fetch_partitions(refs, cache, **options)
    assert outcome.faults == ()
    return outcome.partitions


def fault(store: Store, ref: PartitionRef, cache: Path) -> StoreError:
    """Why the only partition of a fetch is not laid out."""
    outcome = store.fetch_partitions([ref], cache)
    assert outcome.partitions == ()
    (found,) = outcome.faults
    assert found.ref == ref
    return found.error


def tree(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in all_files(root).items() if name != UNVERIFIED}


def test_fetched_files_are_private_copies(store, root, ref, cache):
    fetch(store, [ref], cache)
    path = function_dir(cache, "world1global_rank0", "decode") / "compiled_module"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_nlink == 1
    assert not path.samefile(blob_path(root, DECODE))


def test_many_partitions_read_each_blob_once(store, source, cache, monkeypatch):
    refs = [published(store, source, rank=rank, world_size=3) for rank in range(3)]
    opened = Mock(side_effect=backend_of(store).open)
    monkeypatch.setattr(backend_of(store), "open", opened)
    outcome = store.fetch_partitions(refs, cache)
    times = Counter(call.args[0] for call in opened.mock_calls)
    assert {times[blob_name(digest_bytes(data).sha256)] for data in FUNCTIONS.values()} == {1}
    assert tree(cache) == tree(source)
    assert (outcome.bytes_read, sum(report.bytes_copied for report in outcome.partitions)) == (
        ALL_BYTES,
        3 * ALL_BYTES,
    )


def test_damaged_local_copy_is_replaced_beside_it(store, ref, cache):
    fetch(store, [ref], cache)
    path = function_dir(cache, "world1global_rank0", "decode") / "compiled_module"
    path.write_bytes(b"")
    assert fetch(store, [ref], cache)[0].num_already_there == 1
    assert path.with_name("compiled_module.1").read_bytes() == DECODE


def test_missing_blob_is_a_miss_and_nothing_is_laid_out(store, root, ref, cache):
    blob_path(root, DECODE).unlink()
    error = fault(store, ref, cache)
    assert isinstance(error, NotInStore)
    assert "of Llama.decode" in str(error)
    assert tree(cache) == {}
    assert not (cache / UNVERIFIED).exists()


@pytest.mark.parametrize("what", ["blob", "manifest"])
def test_what_an_evict_just_took_comes_back(store, ref, source, cache, what):
    name = blob_name(digest_bytes(DECODE).sha256) if what == "blob" else manifest_name(ref.manifest_key)
    assert backend_of(store).move(name, trash_name(name, datetime.now(UTC)))
    fetch(store, [ref], cache)
    assert tree(cache) == tree(source)
    assert backend_of(store).stat([name])


def test_damaged_blob_is_quarantined_and_nothing_is_laid_out(store, root, ref, cache):
    data = bytes([DECODE[0] ^ 1]) + DECODE[1:]
    overwrite(blob_path(root, DECODE), data)
    error = fault(store, ref, cache)
    assert isinstance(error, Corrupt)
    assert digest_bytes(DECODE).sha256 in str(error)
    assert tree(cache) == {}
    bad, reason = stored(root, "quarantine")
    assert bad.read_bytes() == data
    assert "corrupt" in reason.read_text()


@pytest.mark.usefixtures("ref")
def test_fetch_blob_of_unknown_size_is_verified_by_its_name(store, cache, monkeypatch):
    """The store keeps blobs compressed, so only reading tells their sizes."""
    real = backend_of(store).stat

    def compressed(names: Any) -> Any:
        return {name: replace(info, content_bytes=None) for name, info in real(names).items()}

    monkeypatch.setattr(backend_of(store), "stat", compressed)
    first, second = (
        store.fetch_blob(digest_bytes(DECODE).sha256, cache / "decode", cache_root=cache) for _ in range(2)
    )
    assert first == second
    assert [path.read_bytes() for path in variants(cache / "decode")] == [DECODE]


def test_first_unchanged_fetch_reads_no_artifact_again(store, source, cache, monkeypatch):
    ref = published(store, source)
    store.fetch_partitions([ref], cache)
    opened: list[str] = []
    real = os.open

    def noting(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", noting)
    outcome = store.fetch_partitions([ref], cache)
    assert (outcome.faults, outcome.bytes_read) == ((), 0)
    assert [name for name in opened if name.startswith("compiled_module")] == []


def test_link_in_a_model_directory_leads_no_copy_away(store, source, cache, tmp_path):
    ref = published(store, source)
    store.fetch_partitions([ref], cache)
    (model,) = cache.glob("Llama*")
    shutil.rmtree(model)
    (tmp_path / "away").mkdir(mode=0o700)
    model.symlink_to(tmp_path / "away")
    (fault,) = store.fetch_partitions([ref], cache).faults
    assert "expected a directory" in str(fault.error)
    assert list((tmp_path / "away").iterdir()) == []


def test_file_system_without_locks_fetches_all_the_same(store, ref, source, cache, monkeypatch, caplog):
    def no_locks(self: FileLock, **_: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    fetch(store, [ref], cache)
    assert tree(cache) == tree(source)
    assert "does not appear to support flock" in caplog.text
