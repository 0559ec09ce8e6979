"""What an evict makes of records that nobody signed, and of documents that are newer than it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sealed_launches import DAY_S, Evicting, put
from tests.support.stored import LAUNCH_KEY, OFF, make_record
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.gc.trash import mark_used
from warmrank.cache_store.layout import launch_name
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.signing.signing_keys import generate_key_pair
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


def test_who_evicts_without_the_keys_keeps_the_newest_of_each_key(signed):
    signed.launch()
    kept = {signed.launch(), signed.launch(key=OTHER_KEY)}
    signed.pass_time(30 * DAY_S)
    signed.store._trust = Trust(policy="require")
    signed.evict(older_than_s=DAY_S)
    assert signed.names("launch/") == kept


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
