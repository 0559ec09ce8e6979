"""What an evict makes of records that nobody signed, and of documents that are newer than it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sealed_launches import DAY_S, Evicting, put
from tests.support.stored import LAUNCH_KEY, OFF, make_record
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import EvictRefused
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.layout import blob_name, launch_name
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.signing.keyring import generate_key_pair
from warmrank.cache_store.signing.trust import Trust

OTHER_KEY = "7" * 64
SIGNING = Trust(policy="require", signer=generate_key_pair("ci"))
NEWER = b'{"format":99}\n'


@pytest.fixture
def signed(tmp_path: Path) -> Evicting:
    return Evicting(tmp_path, SIGNING)


def put_unsigned(signed: Evicting, refs: tuple[PartitionRef, ...], *, key: str = LAUNCH_KEY) -> str:
    """A record that claims to be the newest, by somebody who can write and not sign."""
    data = make_record(refs, launch_key=key, created="9999-01-01T00:00:00+00:00").to_bytes()
    name = launch_name(key, digest_bytes(data).sha256)
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


@pytest.mark.parametrize("policy", ["off", "require"])
def test_young_junk_pushes_no_record_out_where_none_is_signed(tmp_path, policy):
    memory = Evicting(tmp_path)
    record = memory.launch(own=b"x" * 1000)
    memory.pass_time(30 * DAY_S)
    put(memory, blob_name(digest_bytes(b"y" * 100_000).sha256), b"y" * 100_000)
    memory.store._trust = replace(SIGNING, policy=policy)
    memory.evict(max_bytes=50_000, keep=0)
    assert memory.names("launch/") == {record}


def test_who_evicts_without_the_keys_keeps_the_newest_of_each_key(signed):
    signed.launch()
    kept = {signed.launch(), signed.launch(key=OTHER_KEY)}
    signed.pass_time(30 * DAY_S)
    signed.store._trust = Trust(policy="require")
    signed.evict(older_than_s=DAY_S)
    assert signed.names("launch/") == kept


def test_what_an_unsigned_record_needs_stays_with_it(signed):
    signed.launch()
    record = signed.publish({"Llama.own": b"theirs"}, 50, key=OTHER_KEY)
    put_unsigned(signed, record.partitions, key=OTHER_KEY)
    signed.pass_time(30 * DAY_S)
    assert signed.evict(older_than_s=DAY_S).taken == ()
    assert signed.has(b"theirs")


def test_unsigned_record_that_was_just_used_pushes_no_signed_one_out(signed):
    records = {signed.launch(), signed.launch()}
    junk = signed.publish({"Llama.own": b"junk" * 50_000}, 50, key=OTHER_KEY)
    fake = put_unsigned(signed, junk.partitions, key=OTHER_KEY)
    signed.pass_time(30 * DAY_S)
    mark_used(signed.backend, fake)
    signed.evict(max_bytes=100_000)
    assert signed.names("launch/") == {*records, fake}
    signed.pass_time(3 * DAY_S)
    signed.evict(max_bytes=100_000, keep=0)
    assert signed.names("launch/") == records


def test_unsigned_record_is_the_first_to_make_room(signed):
    records = [signed.launch(own=bytes([number]) * 100_000) for number in range(3)]
    junk = signed.publish({"Llama.own": b"junk"}, 50)
    fake = put_unsigned(signed, junk.partitions)
    signed.pass_time(30 * DAY_S)
    mark_used(signed.backend, fake)
    signed.pass_time(3 * DAY_S)
    signed.evict(max_bytes=250_000)
    standing = signed.names("launch/")
    assert (len(standing), standing < set(records)) == (2, True)


@pytest.mark.parametrize("place", ["ac/", "launch/"])
def test_newer_envelope_that_nobody_signed_stops_no_evict(signed, place):
    old, new = signed.launch(), signed.launch()
    name = f"ac/99/99{'0' * 62}" if place == "ac/" else launch_name(OTHER_KEY, "9" * 64)
    put(signed, name, NEWER)
    signed.pass_time(30 * DAY_S)
    mark_used(signed.backend, new)
    report = signed.evict(older_than_s=7 * DAY_S)
    assert old not in signed.names("launch/")
    assert name in signed.names(place)
    (problem,) = report.problems
    assert problem.startswith(f"{name} is kept, though what it needs is not known: untrusted (unsigned)")


def test_newer_payload_that_is_signed_is_refused(signed):
    signed.launch()
    payload = signed.store.launches()[0].to_bytes().replace(b'"format":1', b'"format":3')
    name = launch_name(LAUNCH_KEY, digest_bytes(payload).sha256)
    put(signed, name, SIGNING.seal("launch", LAUNCH_KEY, payload))
    with pytest.raises(EvictRefused, match="upgrade warmrank"):
        signed.evict()
    signed.backend.move(name, None)
    put(signed, name, OFF.seal("launch", LAUNCH_KEY, payload))
    assert name in signed.evict().problems[0]
