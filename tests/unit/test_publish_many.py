"""Publishing many partitions of the same few artifacts at once, and laying them out on a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.stored import (
    FUNCTIONS,
    LAUNCH_KEY,
    make_partition,
    open_store,
    overwrite,
)
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.errors import Corrupt, Untrusted
from warmrank.cache_store.fetch.staging import replicate
from warmrank.cache_store.publish.publish import PublishReport
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.cache_store.signing.signing_keys import generate_key_pair
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.orchestrator.build.plan import replica

NUM = 12


def many(cache: Path, functions: Mapping[str, bytes] = FUNCTIONS) -> tuple[PartitionManifest, ...]:
    """One partition that lies in the cache directory, and others that do not."""
    first = make_partition(cache, rank=0, world_size=NUM, functions=functions)
    return (first, *(replica(first, rank) for rank in range(1, NUM)))


def files_of(manifests: tuple[PartitionManifest, ...], cache: Path) -> dict[str, Path]:
    return {entry.sha256: entry.local_path(cache) for entry in manifests[0].artifacts}


def publish(
    store: Store, cache: Path, functions: Mapping[str, bytes] = FUNCTIONS
) -> tuple[PublishReport, ...]:
    manifests = many(cache, functions)
    return store.publish_partitions(LAUNCH_KEY, manifests, files_of(manifests, cache), cache)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_each_is_what_publishing_it_alone_would_be(store, cache, tmp_path):
    reports = publish(store, cache)
    alone = open_store(tmp_path / "alone")
    report = alone.publish_partition(
        LAUNCH_KEY, make_partition(tmp_path / "own", rank=7, world_size=NUM), tmp_path / "own"
    )
    assert (reports[7].key, reports[7].ref, reports[7].created) == (report.key, report.ref, True)


def test_manifests_go_in_with_a_few_flushes_whatever_their_number(store, cache, monkeypatch):
    batches: list[int] = []
    put_new = DirectoryBackend.put_new

    def counted(self: DirectoryBackend, files: Sequence[NewFile]) -> tuple[str, ...]:
        batches.append(len(files))
        return put_new(self, files)

    monkeypatch.setattr(DirectoryBackend, "put_new", counted)
    publish(store, cache)
    assert batches == [2, NUM]


def test_other_bytes_under_the_same_keys_are_conflicts_and_those_that_stand_stay(store, cache, tmp_path):
    first = publish(store, cache)
    other = publish(store, tmp_path / "other", {**FUNCTIONS, "Llama.decode": b"other"})
    assert {report.conflicts for report in other} == {("Llama.decode",)}
    assert [report.ref for report in other] == [report.ref for report in first]


def test_file_that_changed_publishes_nothing(store, cache, tmp_path):
    manifests = many(cache)
    files = files_of(manifests, cache)
    overwrite(next(iter(files.values())), b"changed")
    with pytest.raises(Corrupt):
        store.publish_partitions(LAUNCH_KEY, manifests, files, cache)
    assert not list((tmp_path / "store").glob("ac/*/*"))


def test_all_are_signed_and_without_a_key_none_is_published(cache, tmp_path):
    store = open_store(tmp_path / "store", Trust(policy="require", signer=generate_key_pair("ours")))
    assert all(report.created for report in publish(store, cache))
    with pytest.raises(Untrusted):
        publish(open_store(tmp_path / "empty", Trust(policy="require")), cache)
    assert not list((tmp_path / "empty").glob("cas/*"))


def test_copies_are_laid_out_private_and_apart(cache):
    manifests = many(cache)
    assert replicate(manifests, files_of(manifests, cache), cache) == 2 * (NUM - 1)
    paths = [entry.local_path(cache) for manifest in manifests for entry in manifest.artifacts]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert len({path.stat().st_ino for path in paths}) == len(paths)
    assert {path.read_bytes() for path in paths} == set(FUNCTIONS.values())


def test_original_that_changed_is_not_copied(cache):
    manifests = many(cache)
    files = files_of(manifests, cache)
    overwrite(next(iter(files.values())), b"changed")
    with pytest.raises(Corrupt, match="build again"):
        replicate(manifests[1:], files, cache)
