"""Signatures: envelopes, keys, policies, marks of unsigned directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO, Literal

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import (
    LAUNCH_KEY,
    backend_of,
    make_partition,
    open_store,
    publish_launch,
    save_key_pair,
)
from warmrank.cache_store.cache_dir.marks import (
    UNVERIFIED,
    Marks,
    check_marks,
    mark_signers,
    mark_unverified,
    marks_of,
    permit_copies,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreError, Untrusted, UnusableCache
from warmrank.cache_store.layout import BLOBS
from warmrank.cache_store.signing.keyring import (
    Revocation,
    Signer,
    generate,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
    revoke,
    save_private_key,
    save_public_key,
)
from warmrank.cache_store.signing.trust import (
    Envelope,
    Header,
    Producer,
    Signature,
    Trust,
    TrustPolicy,
    load_trust,
    parse_envelope,
    signed_message,
)
from warmrank.cache_store.store import TierSpec
from warmrank.cache_store.store import open_store as open_tiers

KEY = "1" * 64
PAYLOAD = b'{"a":1}'
SIGNER = generate_key_pair("ci")
PUBLISHER = Trust(policy="require", signer=SIGNER)
REVOKED = {
    key_id(SIGNER.public_key): Revocation(
        key_id=key_id(SIGNER.public_key), when="2026-01-31T12:00:00+00:00", reason="laptop lost"
    )
}
SEALED = PUBLISHER.seal("manifest", KEY, PAYLOAD)


def refused(trust: Trust, data: bytes, *, key: str = KEY) -> str:
    with pytest.raises(Untrusted) as caught:
        trust.open_envelope("manifest", key, data, where="ac/11/1")
    assert "ac/11/1" in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("policy", ["require", "warn"])
def test_revoked_key_is_refused_with_its_time_and_reason(policy: TrustPolicy):
    reader = Trust(policy=policy, trusted={"ci": SIGNER.public_key}, revoked=REVOKED)
    assert refused(reader, SEALED) == "revoked"
    with pytest.raises(Untrusted, match=r"revoked on 2026-01-31T12:00:00\+00:00 \(laptop lost\)"):
        reader.open_envelope("manifest", KEY, SEALED)


@pytest.mark.parametrize("policy", ["require", "warn", "off"])
def test_revoked_key_of_ones_own_signs_nothing(policy: TrustPolicy):
    own = Trust(policy=policy, signer=SIGNER, revoked=REVOKED)
    with pytest.raises(Untrusted, match=r"untrusted \(revoked\).*warmrank keys generate"):
        own.seal("manifest", KEY, PAYLOAD)


def test_load_trust_adds_keyring_and_files_up(tmp_path):
    ours, theirs = generate(tmp_path / "keys", "ci"), generate_key_pair("ci")
    _, file = save_key_pair(theirs, tmp_path / "files")
    reader = load_trust("require", trusted_keys={"ci": file}, keyring=tmp_path / "keys")
    for signer in (ours, theirs):
        sealed = Trust(policy="require", signer=signer).seal("manifest", KEY, PAYLOAD)
        assert reader.open_envelope("manifest", KEY, sealed) == PAYLOAD


def test_load_trust_takes_revocations_from_keyring_and_config(tmp_path):
    ours, other = generate(tmp_path, "ci"), "1" * 32
    revoke(tmp_path, Revocation(key_id=key_id(ours.public_key)))
    assert set(load_trust("require", keyring=tmp_path, revoked=[other]).revoked) == {
        key_id(ours.public_key),
        other,
    }


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PRODUCER = Producer(name="ci", key_id="0" * 32)
SIGNATURES = st.builds(
    Signature,
    name=st.from_regex(r"[a-z \u00e9]{1,8}", fullmatch=True),
    key_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    value=st.binary(min_size=64, max_size=64).map(bytes.hex),
)


def envelope_of(
    *, kind: str, key: str, payload: bytes, signature: Signature | Literal["unsigned"]
) -> Envelope:
    digest = digest_bytes(payload)
    named = {"sha256": digest.sha256, "size_bytes": digest.size_bytes}
    return Envelope(Header(kind=kind, key=key, payload=named, signature=signature), payload)


ENVELOPES = st.builds(
    envelope_of,
    kind=TEXT,
    key=TEXT,
    payload=st.binary(max_size=64),
    signature=st.just("unsigned") | SIGNATURES,
)
PLAIN_HEADER = envelope_of(kind="manifest", key="k", payload=b'{"a":1}', signature="unsigned")
P = digest_bytes(b"p").sha256


def parse(data: bytes) -> Envelope:
    return parse_envelope(data, what="manifest k", where="ac/ab/k")


@given(ENVELOPES)
def test_envelope_round_trips(envelope):
    assert parse(envelope.to_bytes()) == envelope


@given(st.binary(max_size=200))
def test_parse_envelope_takes_no_garbage(data):
    with pytest.raises(StoreError):
        parse(data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"key":"k"', b'"key": "k"'),
        (b'"key":"k"', b'"key":"x","key":"k"'),
        (b'"key":"k"', b'"key":"\\u006b"'),
        (b'{"format":2,', b"{"),
    ],
    ids=["blank", "twice", "escape", "order"],
)
def test_envelope_has_one_spelling(old, new):
    data = PLAIN_HEADER.to_bytes().replace(old, new)
    if b"format" not in data:
        data = data.replace(b'"signature"', b'"format":2,"signature"')
    with pytest.raises(Corrupt, match="canonical JSON"):
        parse(data)


@pytest.mark.parametrize(("kind", "key"), [("manifest", "kx"), ("launch", "k"), ("manifestk", "")])
def test_signed_message_tells_kind_and_key_apart(kind, key):
    assert signed_message(kind, key, P, PRODUCER) != signed_message("manifest", "k", P, PRODUCER)


@pytest.fixture
def signer() -> Signer:
    return generate_key_pair("ci")


def test_private_key_that_others_can_read_is_refused(signer, tmp_path):
    private_path, _ = save_key_pair(signer, tmp_path)
    private_path.chmod(0o640)
    with pytest.raises(UnusableCache, match="mode 0640"):
        load_signer(private_path)


def test_key_file_is_never_overwritten(signer, tmp_path):
    save_key_pair(signer, tmp_path)
    other = generate_key_pair("ci")
    with pytest.raises(UnusableCache, match="File exists"):
        save_private_key(other, tmp_path / "ci.pem")
    with pytest.raises(UnusableCache, match="File exists"):
        save_public_key(other.public_key, tmp_path / "ci.pub.pem")
    assert key_id(load_signer(tmp_path / "ci.pem").public_key) == key_id(signer.public_key)
    assert key_id(load_public_key(tmp_path / "ci.pub.pem")) == key_id(signer.public_key)


def test_load_signer_refuses_another_kind_of_key(tmp_path):
    path = tmp_path / "ci.pem"
    path.write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)
    with pytest.raises(Corrupt, match="X25519"):
        load_signer(path)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_public_key_that_others_can_write_is_refused(signer, tmp_path, mode):
    _, public_path = save_key_pair(signer, tmp_path)
    public_path.chmod(mode)
    with pytest.raises(UnusableCache, match="chmod 644"):
        load_public_key(public_path)


def test_what_was_fetched_before_its_key_was_revoked_is_not_used_after(root: Path, source: Path, cache: Path):
    signer = generate_key_pair("ci")
    own = key_id(signer.public_key)
    publisher = open_tiers([TierSpec(location=str(root))], trust=Trust(policy="require", signer=signer))
    ref = publisher.publish_partition(LAUNCH_KEY, make_partition(source), source).ref
    trusting = Trust(policy="require", trusted={"ci": signer.public_key})
    reader = open_tiers([TierSpec(location=str(root))], trust=trusting)
    assert reader.fetch_partitions([ref], cache).faults == ()
    revoking = Trust(
        policy="require", trusted=trusting.trusted, revoked={own: Revocation(key_id=own, reason="stolen")}
    )
    wary = open_tiers([TierSpec(location=str(root))], trust=revoking)
    with pytest.raises(UnusableCache, match=f"key {own} signed, which is revoked"):
        wary.fetch_partitions([ref], cache)


def test_single_blob_is_marked_with_every_key_that_may_have_named_it(root: Path, source: Path, cache: Path):
    signer, other = generate_key_pair("ci"), generate_key_pair("other")
    publisher = open_tiers([TierSpec(location=str(root))], trust=Trust(policy="require", signer=signer))
    publisher.publish_partition(LAUNCH_KEY, partition := make_partition(source), source)
    revoked = {key_id(other.public_key): Revocation(key_id=key_id(other.public_key), reason="old")}
    trusted = {"ci": signer.public_key, "other": other.public_key}
    reader = open_tiers(
        [TierSpec(location=str(root))], trust=Trust(policy="require", trusted=trusted, revoked=revoked)
    )
    reader.fetch_blob(partition.artifacts[0].sha256, cache / "f", cache_root=cache)
    assert [path.name for path in (cache / ".signers").iterdir()] == [key_id(signer.public_key)]


ONE = "1" * 16


def test_single_blob_is_not_copied_into_a_directory_of_a_revoked_key(tmp_path):
    record = publish_launch(open_store(tmp_path / "store"), tmp_path / "source")
    revoked = {ONE: Revocation(key_id=ONE, reason="stolen")}
    store = open_store(tmp_path / "store", Trust(policy="warn", revoked=revoked))
    entry = store.manifest(record.partitions[0].manifest_key).artifacts[0]
    (tmp_path / "cache").mkdir(mode=0o700)
    mark_signers(tmp_path / "cache", [ONE])
    with pytest.raises(UnusableCache, match="revoked"):
        store.fetch_blob(entry.sha256, tmp_path / "cache" / "f", cache_root=tmp_path / "cache")
    assert not (tmp_path / "cache" / "f").exists()


@pytest.mark.parametrize("policy", ["off", "require"])
def test_marks_of_one_directory_are_those_of_the_next(tmp_path, policy):
    (tmp_path / "one").mkdir()
    (tmp_path / "next").mkdir()
    permit_copies(tmp_path / "one", policy, [ONE])
    marks = marks_of(tmp_path / "one")
    permit_copies(tmp_path / "next", marks.policy, marks.signers)
    assert marks_of(tmp_path / "next") == marks == Marks(policy=policy, signers=frozenset([ONE]))


def test_unverified_directory_is_refused_under_require(tmp_path):
    mark_unverified(tmp_path, "off")
    with pytest.raises(UnusableCache, match="use another cache_dir, or empty this one"):
        check_marks(tmp_path, "require", ())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """Each path that was flushed by its name, with what the mark there held by then."""
    flushed: list[tuple[str, bytes]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        mark = path if path.name == UNVERIFIED else path / UNVERIFIED
        flushed.append((path.name, mark.read_bytes() if mark.exists() else b""))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return flushed


def test_mark_is_durable_before_the_first_copy(tmp_path, synced, monkeypatch):
    store = open_store(tmp_path / "store")
    record = publish_launch(store, tmp_path / "source")
    synced.clear()
    before: list[list[str]] = []
    real = backend_of(store).open

    def note(name: str) -> BinaryIO:
        if name.startswith(BLOBS):
            before.append([path for path, _ in synced])
        return real(name)

    monkeypatch.setattr(backend_of(store), "open", note)
    assert store.fetch_partitions(record.partitions, tmp_path / "cache").faults == ()
    assert [flushed[:2] for flushed in before] == [[UNVERIFIED, "cache"]] * 2


def test_mark_that_cannot_be_made_durable_stops_the_fetch(tmp_path, monkeypatch):
    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UnusableCache, match="Input/output error"):
        mark_unverified(tmp_path, "off")
