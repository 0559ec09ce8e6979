"""What an evict takes and leaves, on a store in memory whose clock the tests move."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sealed_launches import DAY_S, GRACE_S, SHARED, Evicting, at_step, put
from tests.support.stored import LAUNCH_KEY, OFF, make_record
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import EvictRefused, NotInStore, StoreUnavailable
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.layout import PROBE, launch_name
from warmrank.cache_store.publish import launches
from warmrank.cache_store.steps import Step


@pytest.fixture
def memory(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path)


def test_old_record_goes_with_what_only_it_needs(memory):
    old, new = memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    mark_used(memory.backend, new)
    report = memory.evict(older_than_s=7 * DAY_S)
    assert [choice.kind for choice in report.taken] == ["record", "manifest", "blob"]
    assert memory.names("launch/") == {new}
    assert (memory.has(b"own 1"), memory.has(b"own 2"), memory.has(SHARED)) == (False, True, True)
    assert report.taken[0].name == old
    assert "unused for 30.0 d" in report.taken[0].reason


def test_newest_record_of_each_environment_stays(memory):
    memory.launch(environment={"torch": "1"})
    kept = {memory.launch(environment={"torch": "1"}), memory.launch(environment={"torch": "2"})}
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == kept


def test_record_of_several_environments_is_the_newest_of_each(memory):
    one, two = {"torch": "1"}, {"torch": "2"}
    ref = memory.publish({"Llama.own": b"own"}, 50).partitions[0]
    refs = (ref, ref.model_copy(update={"rank": 1, "partition": "world2global_rank1"}))
    data = make_record(refs, environment=one, elsewhere={1: two}).to_bytes()
    mixed = launch_name(LAUNCH_KEY, digest_bytes(data).sha256)
    put(memory, mixed, OFF.seal("launch", LAUNCH_KEY, data))
    memory.pass_time(DAY_S)
    newer = memory.launch(environment=one)
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == {mixed, newer}
    newest = memory.launch(environment=two)
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == {newer, newest}


def test_pinned_record_stays(memory):
    old, new = memory.launch(), memory.launch()
    memory.store.pin(old.rpartition("/")[2][:12], reason="baseline")
    memory.pass_time(30 * DAY_S)
    report = memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == {old, new}
    assert {choice.name: choice.reason for choice in report.kept}[old] == "pinned"


def test_recently_used_record_stays(memory):
    used, _ = memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    mark_used(memory.backend, used)
    memory.pass_time(2 * DAY_S)
    assert memory.evict(older_than_s=7 * DAY_S).taken == ()


def test_least_recently_used_go_until_the_rest_fits(memory):
    records = [memory.launch(own=bytes([number]) * 100_000) for number in range(4)]
    memory.pass_time(30 * DAY_S)
    mark_used(memory.backend, records[0])
    memory.pass_time(3 * DAY_S)
    report = memory.evict(max_bytes=250_000)
    assert memory.names("launch/") == {records[0], records[3]}
    assert report.remaining_bytes < 250_000
    assert "bytes too many" in report.taken[0].reason


def test_nothing_younger_than_the_grace_goes(memory):
    memory.launch(), memory.launch()
    memory.publish({"Llama.own": b"no launch"}, 50)
    memory.pass_time(GRACE_S)
    assert memory.evict(older_than_s=0.0, max_bytes=0, keep=0).taken == ()


def test_what_no_launch_committed_goes_after_the_grace(memory):
    memory.launch()
    memory.publish({"Llama.own": b"no launch"}, 50)
    memory.pass_time(GRACE_S + 1)
    assert [choice.kind for choice in memory.evict().taken] == ["manifest", "blob"]
    assert not memory.has(b"no launch")


def test_young_manifest_protects_its_blobs(memory):
    memory.launch()
    memory.publish({"Llama.own": b"twice"}, 50)
    memory.pass_time(GRACE_S + 1)
    memory.publish({"Llama.own": b"twice"}, 51)
    memory.evict()
    assert memory.has(b"twice")


def test_trash_is_emptied_by_a_later_run_after_the_grace(memory):
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    in_trash = memory.names("trash/")
    assert (len(in_trash), memory.evict().num_deleted) == (3, 0)
    memory.pass_time(GRACE_S + 1)
    report = memory.evict()
    assert (report.num_deleted, memory.names("trash/")) == (3, set())


def test_dry_run_writes_nothing_on_the_way(memory, monkeypatch):
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    for write in ("put_new", "move"):
        monkeypatch.setattr(memory.backend, write, None)
    assert memory.evict(older_than_s=DAY_S, dry_run=True).taken


def test_empty_listing_is_refused(memory):
    with pytest.raises(EvictRefused, match="empty"):
        memory.evict()


def test_store_without_records_is_emptied_on_purpose(memory):
    memory.publish({"Llama.own": b"no launch"}, 1)
    memory.pass_time(30 * DAY_S)
    memory.evict(expects_records=False)
    assert not memory.has(b"no launch")


@pytest.mark.parametrize("prefix", ["cas/sha256/", "ac/", "launch/", "dir/", "used/", "pins/", "trash/"])
def test_failing_listing_is_refused(memory, monkeypatch, prefix):
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    real = memory.backend.list

    def fail(wanted: str) -> object:
        if wanted == prefix:
            raise StoreUnavailable(what="listing", where=prefix, reason="Stale file handle")
        return real(wanted)

    monkeypatch.setattr(memory.backend, "list", fail)
    with pytest.raises(StoreUnavailable, match="Stale"):
        memory.evict(older_than_s=DAY_S)
    monkeypatch.undo()
    assert len(memory.names("launch/")) == 2


def test_listing_that_leaves_out_a_used_record_is_refused(memory, monkeypatch):
    hidden, _ = memory.launch(), memory.launch()
    mark_used(memory.backend, hidden)
    memory.pass_time(30 * DAY_S)
    real = memory.backend.list
    monkeypatch.setattr(
        memory.backend, "list", lambda prefix: (info for info in real(prefix) if info.name != hidden)
    )
    with pytest.raises(EvictRefused, match="not in its listing"):
        memory.evict()


@pytest.mark.parametrize("place", ["launch/", "ac/"])
def test_damaged_document_is_refused_with_the_remedy(memory, place):
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    name = min(memory.names(place))
    memory.backend.move(name, None)
    put(memory, name, b"damaged")
    with pytest.raises(EvictRefused, match="verify --repair"):
        memory.evict(older_than_s=DAY_S)


def test_record_committed_while_marking_keeps_what_it_needs(memory, monkeypatch):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: memory.commit(record))
    report = memory.evict()
    assert {choice.kind for choice in report.taken} == set()
    assert memory.has(b"late")
    assert memory.store.verify().faults == ()


def test_record_committed_after_the_trash_restores_what_it_needs(memory, monkeypatch):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_CHECKED, lambda: memory.commit(record))
    memory.evict()
    assert memory.store.verify().faults == ()
    assert memory.store.launches()[0].partitions == record.partitions


def test_record_pinned_while_it_goes_comes_back_whole(memory, monkeypatch):
    old, _ = memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    prefix = old.rpartition("/")[2]
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: memory.store.pin(prefix))
    report = memory.evict(older_than_s=DAY_S)
    assert old in memory.names("launch/")
    assert set(report.restored) >= {old}
    assert memory.store.verify().faults == ()


def test_record_used_while_it_goes_comes_back_whole(memory, monkeypatch):
    old, _ = memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: mark_used(memory.backend, old))
    memory.evict(older_than_s=DAY_S)
    assert old in memory.names("launch/")
    assert memory.store.verify().faults == ()


def test_launch_found_warm_while_its_record_goes_stays_whole(memory, monkeypatch):
    memory.launch()
    record = memory.publish({"Llama.own": b"warm"}, 50, environment={"torch": "warm"})
    memory.commit(record)
    memory.launch()
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: memory.commit(record))
    memory.evict(older_than_s=DAY_S, keep=0)
    assert record.partitions in [found.partitions for found in memory.store.launches()]
    assert memory.store.verify().faults == ()


def test_manifest_that_goes_before_its_record_is_written_comes_back(memory, monkeypatch):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.COMMIT_CHECKED, memory.evict, of=launches)
    memory.commit(record)
    assert memory.has(b"late")
    assert memory.store.verify().faults == ()


def test_two_evicts_at_once_take_each_thing_once(memory, monkeypatch):
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: memory.evict(older_than_s=DAY_S))
    report = memory.evict(older_than_s=DAY_S)
    assert (report.taken, len(memory.names("trash/"))) == ((), 3)
    assert memory.store.verify().faults == ()


def test_evict_that_slept_for_longer_than_the_grace_deletes_nothing_that_came_back(memory, monkeypatch):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    memory.pass_time(30 * DAY_S)
    memory.evict()
    memory.pass_time(GRACE_S + 1)

    def others() -> None:
        memory.commit(record)
        memory.pass_time(2 * GRACE_S)

    at_step(monkeypatch, Step.EVICT_MARKED, others)
    memory.evict()
    assert memory.store.verify().faults == ()
    assert memory.has(b"late")


def test_evict_brings_back_what_a_killed_one_took(memory, monkeypatch):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    memory.pass_time(30 * DAY_S)

    def die() -> None:
        # Looked at before anything went, and written after: as a commit that another node made meanwhile.
        raise KeyboardInterrupt

    at_step(monkeypatch, Step.EVICT_CHECKED, die)
    with pytest.raises(KeyboardInterrupt):
        memory.evict()
    payload = memory.store._trust.seal("launch", record.launch_key, record.to_bytes())
    sha256 = digest_bytes(record.to_bytes()).sha256
    put(memory, f"launch/{record.launch_key[:2]}/{record.launch_key}/{sha256}", payload)
    assert memory.store.verify().faults
    memory.evict()
    assert memory.store.verify().faults == ()


def test_file_of_the_trash_that_changed_is_not_deleted(memory, monkeypatch):
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    memory.pass_time(GRACE_S + 1)
    times = memory.backend._times

    def renew() -> None:
        for name in memory.names("trash/"):
            times[name] = memory.backend.now_s

    at_step(monkeypatch, Step.EVICT_MARKED, renew)
    assert memory.evict().num_deleted == 0


def test_commit_whose_manifest_was_deleted_is_refused(memory):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    for _ in range(2):
        memory.pass_time(GRACE_S + 1)
        memory.evict()
    with pytest.raises(NotInStore, match="publish these partitions"):
        memory.commit(record)
    assert len(memory.names("launch/")) == 1


def test_what_a_dead_publisher_left_goes_after_a_day(memory):
    memory.launch()
    put(memory, "tmp/host-1-x/0", b"bytes")
    put(memory, PROBE)
    memory.pass_time(0.5 * DAY_S)
    assert memory.evict().num_deleted == 0
    put(memory, "tmp/host-2-y/0", b"young")
    memory.pass_time(0.6 * DAY_S)
    report = memory.evict()
    assert (report.num_deleted, report.bytes_deleted) == (1, 5)
    assert memory.names("tmp/") == {"tmp/host-2-y/0", PROBE}
    memory.pass_time(5 * DAY_S)
    assert memory.evict(grace_s=6 * DAY_S).num_deleted == 0


def test_what_other_users_write_now_stops_no_evict(memory, monkeypatch):
    memory.launch()
    real = memory.backend.list

    def fail(prefix: str) -> object:
        if prefix == "tmp/":
            raise StoreUnavailable(what="listing", where=prefix, reason="Permission denied")
        return real(prefix)

    monkeypatch.setattr(memory.backend, "list", fail)
    (problem,) = memory.evict().problems
    assert "not all of tmp/ could be looked at" in problem
