"""Evict: what goes, what stays, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sealed_launches import DAY_S, GRACE_S, SHARED, Evicting, at_step, put
from tests.support.stored import LAUNCH_KEY, OFF, make_record
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import EvictRefused, StoreUnavailable
from warmrank.cache_store.layout import PROBE, blob_name, record_name
from warmrank.cache_store.publish import mark_used
from warmrank.cache_store.records.manifest import OF_ONE_RUN, PartitionRef
from warmrank.cache_store.signing.keyring import generate_key_pair
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import Step
from warmrank.orchestrator.cli.store import parse_duration_s, parse_size_bytes
from warmrank.orchestrator.exec.notes import exchange


def test_old_record_goes_with_what_only_it_needs(memory):
    old, new = memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    mark_used(memory.places, new)
    report = memory.evict(older_than_s=7 * DAY_S)
    assert [choice.kind for choice in report.taken] == ["record", "manifest", "blob"]
    assert memory.names("launch/") == {new}
    assert (memory.has(b"own 1"), memory.has(b"own 2"), memory.has(SHARED)) == (False, True, True)
    assert report.taken[0].name == old
    assert "unused for 30.0 d" in report.taken[0].reason


def _of_two_ranks(memory: Evicting, one: dict[str, str], two: dict[str, str]) -> str:
    """Commit a launch of two ranks, in an environment each; its record's name."""
    record = memory.publish({"Llama.own": b"own"}, 50)
    ref = record.partitions[0]
    refs = (ref, ref.model_copy(update={"rank": 1, "partition": "world2global_rank1"}))
    return memory.commit(make_record(refs, environment=one, elsewhere={1: two}, created=record.created))


def test_record_of_several_environments_is_the_newest_of_each(memory):
    one, two = {"torch": "1"}, {"torch": "2"}
    mixed = _of_two_ranks(memory, one, two)
    memory.pass_time(DAY_S)
    newer = _of_two_ranks(memory, one, one)
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == {mixed, newer}
    newest = _of_two_ranks(memory, two, two)
    memory.pass_time(30 * DAY_S)
    memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == {newer, newest}


def test_newest_record_of_each_number_of_ranks_stays(memory):
    one = {"torch": "1"}
    of_two = _of_two_ranks(memory, one, one)
    memory.pass_time(DAY_S)
    older, newer = memory.launch(environment=one), memory.launch(environment=one)
    memory.pass_time(30 * DAY_S)
    assert memory.evict(older_than_s=DAY_S).taken[0].name == older
    assert memory.names("launch/") == {of_two, newer}


def test_pinned_record_stays(memory):
    old, new = memory.launch(), memory.launch()
    memory.store.pin(old.rpartition("/")[2][:12], reason="baseline")
    assert [(pin.record, pin.reason) for pin in memory.store.pins()] == [(old, "baseline")]
    memory.pass_time(30 * DAY_S)
    report = memory.evict(older_than_s=DAY_S)
    assert memory.names("launch/") == {old, new}
    assert {choice.name: choice.reason for choice in report.kept}[old] == "pinned"


def test_least_recently_used_go_until_the_rest_fits(memory):
    records = [memory.launch(own=bytes([number]) * 100_000) for number in range(4)]
    memory.pass_time(30 * DAY_S)
    mark_used(memory.places, records[0])
    memory.pass_time(3 * DAY_S)
    report = memory.evict(max_bytes=250_000)
    assert memory.names("launch/") == {records[0], records[3]}
    assert report.remaining_bytes < 250_000
    assert "bytes too many" in report.taken[0].reason


def test_what_was_just_made_does_not_go_before_what_was_used_earlier_that_day(memory):
    used = memory.launch(own=b"1" * 100_000)
    memory.pass_time(3 * DAY_S)
    mark_used(memory.places, used)
    memory.pass_time(600)
    made = memory.launch(own=b"2" * 100_000)
    memory.pass_time(3)
    report = memory.evict(max_bytes=150_000, keep=0, grace_s=0)
    assert [(choice.name, choice.reason) for choice in report.kept] == [
        (made, "used 3 s ago"),
        (used, "used within the last 10.1 min, perhaps within the grace"),
    ]
    memory.pass_time(DAY_S)
    report = memory.evict(max_bytes=150_000, keep=0, grace_s=0)
    assert ([choice.name for choice in report.taken if choice.kind == "record"], report.over_bytes) == (
        [used],
        0,
    )


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


@pytest.fixture
def aged(memory: Evicting) -> Evicting:
    """The store in memory with two launches, a month ago."""
    memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    return memory


def test_dry_run_writes_nothing_on_the_way(aged, monkeypatch):
    for write in ("put_new", "move"):
        monkeypatch.setattr(aged.backend, write, None)
    assert aged.evict(older_than_s=DAY_S, dry_run=True).taken


def test_empty_listing_is_refused(memory):
    with pytest.raises(EvictRefused, match=r"empty.* mount$"):  # for which no option is a remedy
        memory.evict(expects_records=False)


@pytest.mark.parametrize("prefix", ["cas/sha256/", "ac/", "launch/", "dir/", "used/", "pins/", "trash/"])
def test_failing_listing_is_refused(aged, monkeypatch, prefix):
    real = aged.backend.list

    def fail(wanted: str) -> object:
        if wanted == prefix:
            raise StoreUnavailable(what="listing", where=prefix, reason="Stale file handle")
        return real(wanted)

    monkeypatch.setattr(aged.backend, "list", fail)
    with pytest.raises(StoreUnavailable, match="Stale"):
        aged.evict(older_than_s=DAY_S)
    monkeypatch.undo()
    assert len(aged.names("launch/")) == 2


@pytest.mark.parametrize(
    "mark",
    [lambda memory, name: mark_used(memory.places, name), lambda memory, name: memory.store.pin(name[-64:])],
    ids=["used", "pinned"],
)
def test_listing_that_leaves_out_a_record_with_a_mark_is_refused(memory, monkeypatch, mark):
    hidden, _ = memory.launch(), memory.launch()
    mark(memory, hidden)
    memory.pass_time(30 * DAY_S)
    real = memory.backend.list
    monkeypatch.setattr(
        memory.backend, "list", lambda prefix: (info for info in real(prefix) if info.name != hidden)
    )
    with pytest.raises(EvictRefused, match="not in its listing"):
        memory.evict()


@pytest.mark.parametrize("place", ["launch/", "ac/"])
@pytest.mark.parametrize(
    ("data", "remedy"), [(b"damaged", "verify --repair"), (b'{"format":99}\n', "upgrade warmrank")]
)
def test_document_that_cannot_be_read_is_refused_with_the_remedy(aged, place, data, remedy):
    name = min(aged.names(place))
    aged.backend.move(name, None)
    put(aged, name, data)
    with pytest.raises(EvictRefused, match=remedy):
        aged.evict(older_than_s=DAY_S)


@pytest.mark.parametrize("step", [Step.EVICT_MARKED, Step.EVICT_CHECKED], ids=["mark", "trash"])
def test_record_committed_after_the_mark_or_the_trash_has_what_it_needs(memory, monkeypatch, step):
    memory.launch()
    record = memory.publish({"Llama.own": b"late"}, 50)
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, step, lambda: memory.commit(record))
    report = memory.evict()
    assert step == Step.EVICT_CHECKED or report.taken == ()
    assert memory.has(b"late")
    assert memory.store.verify().faults == ()
    assert memory.store.launches()[0].partitions == record.partitions


def test_record_used_while_it_goes_comes_back_whole(memory, monkeypatch):
    old, _ = memory.launch(), memory.launch()
    memory.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: mark_used(memory.places, old))
    memory.evict(older_than_s=DAY_S)
    assert old in memory.names("launch/")
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


def pushed(memory: Evicting, root: Path, data: bytes, *, model: str = "8b") -> str:
    """Push a directory of another tool; its listing's name."""
    before = memory.names("dir/")
    root.mkdir(exist_ok=True, mode=0o700)
    (root / "kernel").write_bytes(data)
    memory.store.push_directory("mine", root, {"model": model})
    (new,) = memory.names("dir/") - before
    return new


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return tmp_path / "tool"


def test_old_listing_goes_with_what_only_it_needs(memory, tool):
    memory.launch()
    pushed(memory, tool, b"first")
    newest = pushed(memory, tool, b"second")
    memory.pass_time(30 * DAY_S)
    report = memory.evict(older_than_s=7 * DAY_S)
    assert [choice.kind for choice in report.taken] == ["record", "blob"]
    assert memory.names("dir/") == {newest}
    assert (memory.has(b"first"), memory.has(b"second"), memory.has(SHARED)) == (False, True, True)


def test_note_of_a_run_is_no_newest_of_its_key(memory):
    memory.launch()
    exchange(memory.store, {OF_ONE_RUN: "job 7"}, "0 of 1", ["0 of 1"], "ranks")
    memory.pass_time(30 * DAY_S)
    assert [choice.kind for choice in memory.evict(older_than_s=7 * DAY_S).taken] == ["record", "blob"]
    assert memory.names("dir/") == set()


def test_push_while_its_blob_goes_leaves_a_whole_listing(memory, tool, monkeypatch):
    memory.launch()
    pushed(memory, tool, b"first")
    pushed(memory, tool, b"second")
    memory.pass_time(30 * DAY_S)
    # A third push of the first bytes finds their blob, and writes its listing while an evict takes it.
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: pushed(memory, tool, b"first"))
    memory.evict(older_than_s=7 * DAY_S)
    assert memory.has(b"first")
    assert memory.store.verify().faults == ()


OTHER_KEY = "7" * 64
SIGNING = Trust(policy="require", signer=generate_key_pair("ci"))
NEWER = b'{"format":99}\n'


@pytest.fixture
def signed(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path, SIGNING)


def put_unsigned(signed: Evicting, refs: tuple[PartitionRef, ...], *, key: str = LAUNCH_KEY) -> str:
    """A record that claims to be the newest, by somebody who can write and not sign."""
    data = make_record(refs, launch_key=key, created="9999-01-01T00:00:00+00:00").to_bytes()
    name = record_name("launch", key, digest_bytes(data).sha256)
    put(signed, name, OFF.seal("launch", key, data))
    return name


@pytest.mark.parametrize(
    "trust",
    [SIGNING, *(replace(SIGNING, policy=policy) for policy in ("warn", "off")), OFF, Trust(policy="require")],
)
def test_unsigned_record_takes_no_place_among_the_newest(signed, trust):
    record = signed.launch()
    signed.pass_time(30 * DAY_S)
    fake = put_unsigned(signed, signed.store.launches()[0].partitions)
    signed.store._trust = trust
    signed.pass_time(30 * DAY_S)
    signed.evict(older_than_s=DAY_S)
    assert signed.names("launch/") == {record}
    assert fake != record
    signed.store._trust = SIGNING
    assert signed.store.verify().faults == ()


def test_unsigned_record_that_was_just_used_pushes_no_signed_one_out(signed):
    records = {signed.launch(), signed.launch()}
    junk = signed.publish({"Llama.own": b"junk" * 50_000}, 50, key=OTHER_KEY)
    fake = put_unsigned(signed, junk.partitions, key=OTHER_KEY)
    signed.pass_time(30 * DAY_S)
    mark_used(signed.places, fake)
    signed.evict(max_bytes=100_000)
    assert signed.names("launch/") == {*records, fake}
    signed.pass_time(3 * DAY_S)
    signed.evict(max_bytes=100_000, keep=0)
    assert signed.names("launch/") == records


@pytest.mark.parametrize("place", ["ac/", "launch/"])
def test_newer_envelope_that_nobody_signed_stops_no_evict(signed, place):
    old, new = signed.launch(), signed.launch()
    name = f"ac/99/99{'0' * 62}" if place == "ac/" else record_name("launch", OTHER_KEY, "9" * 64)
    put(signed, name, NEWER)
    signed.pass_time(30 * DAY_S)
    mark_used(signed.places, new)
    report = signed.evict(older_than_s=7 * DAY_S)
    assert old not in signed.names("launch/")
    assert name in signed.names(place)
    (problem,) = report.problems
    assert problem.startswith(f"{name} is kept, though what it needs is not known: untrusted (unsigned)")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 2592000.0), ("90min", 5400.0), ("1.5s", 1.5), ("2w", 1209600.0)]
)
def test_duration(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("500GiB", 500 << 30), ("2TB", 2 * 10**12), ("1.5 MiB", 3 << 19), ("7B", 7)]
)
def test_size(text, size):
    assert parse_size_bytes(text) == size


def test_nothing_younger_than_the_grace_goes(memory):
    memory.launch(), memory.launch()
    memory.publish({"Llama.own": b"no launch"}, 50)
    memory.pass_time(GRACE_S)
    assert memory.evict(older_than_s=0.0, max_bytes=0, keep=0).taken == ()


def test_two_evicts_at_once_take_each_thing_once(aged, monkeypatch):
    at_step(monkeypatch, Step.EVICT_MARKED, lambda: aged.evict(older_than_s=DAY_S))
    report = aged.evict(older_than_s=DAY_S)
    assert (report.taken, len(aged.names("trash/"))) == ((), 3)
    assert aged.store.verify().faults == ()


def test_file_of_the_trash_that_changed_is_not_deleted(aged, monkeypatch):
    aged.evict(older_than_s=DAY_S)
    aged.pass_time(GRACE_S + 1)

    def renew() -> None:
        aged.backend._times |= dict.fromkeys(aged.names("trash/"), aged.backend.now_s)

    at_step(monkeypatch, Step.EVICT_MARKED, renew)
    assert aged.evict().num_deleted == 0


@pytest.fixture
def near(memory: Evicting) -> Evicting:
    """The store in memory as the near place of another one; its launches were committed elsewhere."""
    (tier,) = memory.places.tiers
    tier.is_farthest = False
    return memory


def test_near_place_without_a_record_keeps_what_is_younger_than_the_limit(near):
    near.publish({"Llama.own": b"old", "Llama.shared": SHARED}, 50)
    put(near, blob_name(digest_bytes(b"node artifact").sha256), b"node artifact")
    near.pass_time(20 * DAY_S)
    near.publish({"Llama.own": b"new", "Llama.shared": SHARED}, 51)
    near.pass_time(20 * DAY_S)
    assert near.evict().taken == ()
    report = near.evict(older_than_s=30 * DAY_S)
    assert ([choice.kind for choice in report.taken], report.problems) == (["manifest", "blob", "blob"], ())
    assert [near.has(data) for data in (b"old", b"node artifact", b"new", SHARED)] == [
        False,
        False,
        True,
        True,
    ]


def test_near_place_keeps_what_was_last_used_or_put_until_the_rest_fits(near):
    used = near.launch(own=b"1" * 100_000)
    near.publish({"Llama.own": b"2" * 100_000}, 50)
    near.pass_time(DAY_S)
    near.publish({"Llama.own": b"3" * 100_000}, 51)
    near.pass_time(10 * DAY_S)
    mark_used(near.places, used)
    near.pass_time(DAY_S)
    report = near.evict(max_bytes=250_000)
    assert [near.has(data * 100_000) for data in (b"1", b"2", b"3")] == [True, False, True]
    assert ([choice.name for choice in report.kept], report.over_bytes) == ([used], 0)
    near.pass_time(3 * DAY_S)
    report = near.evict(max_bytes=0, keep=0)
    assert [choice.kind for choice in report.taken] == ["record", "manifest", "manifest", *["blob"] * 3]


def test_near_place_may_hold_a_launch_in_part_or_nothing(near):
    assert near.evict().taken == ()
    near.launch()
    for name in near.names("ac/"):
        near.backend.move(name, None)
    assert near.evict().problems == ()


def test_record_that_comes_while_its_manifest_goes_from_a_near_place_is_whole(near, monkeypatch):
    record = near.publish({"Llama.own": b"late"}, 50)
    near.pass_time(30 * DAY_S)
    at_step(monkeypatch, Step.EVICT_CHECKED, lambda: near.commit(record))
    near.evict(older_than_s=DAY_S)
    assert near.store.verify().faults == ()
    assert near.has(b"late")
