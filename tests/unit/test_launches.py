from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored import (
    ENVIRONMENT,
    LAUNCH_KEY,
    make_partition,
    make_record,
    open_store,
    overwrite,
    stored,
)
from warmrank.cache_store.errors import Conflict, NotInStore, Untrusted
from warmrank.cache_store.layout import launch_name, manifest_name
from warmrank.cache_store.records import launches as stored_launches
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionRef, parse_launch_record
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store

EARLY, LATE, LATEST = (f"2026-0{month}-01T00:00:00+00:00" for month in (1, 2, 3))


@pytest.fixture
def ref(store: Store, cache: Path) -> PartitionRef:
    return store.publish_partition(LAUNCH_KEY, make_partition(cache), cache).ref


def test_committed_launch_is_found(store, ref):
    record = make_record((ref,))
    store.commit_launch(record)
    assert (store.launches(LAUNCH_KEY), store.launches(), store.launch_keys()) == (
        (record,),
        (record,),
        (LAUNCH_KEY,),
    )


def test_launch_with_a_missing_manifest_is_refused(store, root, ref):
    missing = PartitionRef(
        partition="world2global_rank1", rank=1, manifest_key="7" * 64, manifest_sha256="8" * 64
    )
    with pytest.raises(NotInStore, match=r"manifests 777777777777 of world2global_rank1 .*publish these"):
        store.commit_launch(make_record((ref, missing)))
    assert stored(root, "launch") == []


def test_launch_that_pins_another_manifest_is_refused(store, root, ref):
    other = ref.model_copy(update={"manifest_sha256": "8" * 64})
    with pytest.raises(Conflict, match="world1global_rank0"):
        store.commit_launch(make_record((other,)))
    assert stored(root, "launch") == []


def test_launches_come_newest_first_by_the_store_s_clock(store, ref):
    for created in (LATE, LATEST, EARLY):  # whatever the clocks of their nodes say
        environment = {**ENVIRONMENT, "made": created}
        store.commit_launch(make_record((ref,), created=created, environment=environment))
    for found in (store.launches(LAUNCH_KEY), store.launch_summaries(LAUNCH_KEY)):
        assert [record.created for record in found] == [EARLY, LATEST, LATE]
    assert store.problems == []


def test_launch_that_is_dated_in_the_future_is_reported(store, ref):
    store.commit_launch(make_record((ref,), created="2099-01-31T12:00:00+00:00"))
    store.launch_summaries(LAUNCH_KEY)
    assert "dated in the future" in store.problems[0]


def test_equal_launch_is_committed_once(store, ref):
    first = store.commit_launch(make_record((ref,), created=EARLY))
    assert store.commit_launch(make_record((ref,), created=LATE)) == first
    assert len(store.launches()) == 1


def commit_changed(store: Store, ref: PartitionRef, *, times: int) -> None:
    """Commit launches that differ in their environment."""
    for number in range(times):
        store.commit_launch(make_record((ref,), environment={**ENVIRONMENT, "number": str(number)}))


def test_summaries_come_newest_first_and_say_what_the_records_do(store, ref):
    for created in (LATE, LATEST, EARLY):
        store.commit_launch(make_record((ref,), created=created, environment={"made": created}))
    assert [
        (item.name, item.world_size, item.environments, item.created)
        for item in store.launch_summaries(LAUNCH_KEY)
    ] == [
        (found.name, found.record.world_size, found.record.environments, found.record.created)
        for found in store.stored_launches(LAUNCH_KEY)
    ]


def test_commit_reads_no_more_than_another_standing_record_whole(store, ref, monkeypatch):
    commit_changed(store, ref, times=9)
    read: list[str] = []

    def note(data: bytes, where: str) -> LaunchRecord:
        read.append(where)
        return parse_launch_record(data, where)

    monkeypatch.setattr(stored_launches, "parse_launch_record", note)
    commit_changed(store, ref, times=9)
    assert read == []
    standing = make_record((ref,), environment={**ENVIRONMENT, "number": "0"})
    store.commit_launch(standing.model_copy(update={"identity": {"another": "identity"}}))
    assert len(read) == 1


def test_truncated_record_is_skipped_quarantined_and_reported(store, root, ref, caplog):
    store.commit_launch(make_record((ref,)))
    (path,) = stored(root, "launch")
    overwrite(path, path.read_bytes()[:-1])
    assert store.launches() == ()
    assert len(store.problems) == 1
    assert path.name in store.problems[0]
    assert "Skipped a document" in caplog.text
    assert len(stored(root, "quarantine")) == 2


def test_damaged_record_does_not_hide_the_others(store, root, ref):
    good = make_record((ref,), created=LATE)
    store.commit_launch(make_record((ref,), environment={}, created=EARLY))
    (bad,) = stored(root, "launch")
    store.commit_launch(good)
    overwrite(bad, b"")
    assert store.launches() == (good,)


def test_record_replayed_under_another_launch_key_is_refused(store, root, ref):
    sha256 = store.commit_launch(make_record((ref,)))
    target = root / launch_name("1" * 64, sha256)
    target.parent.mkdir(parents=True)
    target.write_bytes((root / launch_name(LAUNCH_KEY, sha256)).read_bytes())
    assert store.launches("1" * 64) == ()
    assert "replayed" in store.problems[0]


def test_commit_without_a_signing_key_is_refused_under_require(root, ref):
    reader = open_store(root, Trust(policy="require"))
    with pytest.raises(Untrusted, match="no_signing_key"):
        reader.commit_launch(make_record((ref,)))


def test_manifest_replayed_under_another_key_is_refused(store, root, ref):
    target = root / manifest_name("1" * 64)
    target.parent.mkdir(parents=True)
    target.write_bytes((root / manifest_name(ref.manifest_key)).read_bytes())
    with pytest.raises(Untrusted, match=r"replayed.*made for 'manifest'"):
        store.manifest("1" * 64)
    assert not target.exists()
