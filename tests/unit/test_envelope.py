from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreError
from warmrank.cache_store.signing.trust import (
    Envelope,
    Producer,
    Signature,
    parse_envelope,
    signed_message,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PRODUCER = Producer(name="ci", key_id="0" * 32)
SIGNATURES = st.builds(
    Signature,
    name=st.from_regex(r"[a-z \u00e9]{1,8}", fullmatch=True),
    key_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    value=st.binary(min_size=64, max_size=64).map(bytes.hex),
)


def envelope_of(*, kind: str, key: str, payload: bytes, signature: Signature | None) -> Envelope:
    digest = digest_bytes(payload)
    return Envelope(kind=kind, key=key, payload=payload, digest=digest, signature=signature)


ENVELOPES = st.builds(
    envelope_of, kind=TEXT, key=TEXT, payload=st.binary(max_size=64), signature=st.none() | SIGNATURES
)
UNSIGNED = envelope_of(kind="manifest", key="k", payload=b'{"a":1}', signature=None)
P, OTHER = digest_bytes(b"p"), digest_bytes(b"P")


def parse(data: bytes) -> Envelope:
    return parse_envelope(data, what="manifest k", where="ac/ab/k")


@given(ENVELOPES)
def test_envelope_round_trips(envelope):
    assert parse(envelope.to_bytes()) == envelope


@given(st.binary(max_size=200))
def test_parse_envelope_takes_no_garbage(data):
    with pytest.raises(StoreError):
        parse(data)


@given(position=st.integers(0, len(UNSIGNED.to_bytes()) - 1), bit=st.integers(0, 7))
def test_flipped_bit_never_changes_the_payload_unnoticed(position, bit):
    data = bytearray(UNSIGNED.to_bytes())
    data[position] ^= 1 << bit
    try:
        envelope = parse(bytes(data))
    except StoreError:
        return
    assert envelope.payload == UNSIGNED.payload
    assert (envelope.kind, envelope.key) != (UNSIGNED.kind, UNSIGNED.key)


@pytest.mark.parametrize("size_bytes", range(len(UNSIGNED.to_bytes())))
def test_truncated_envelope_is_corrupt(size_bytes):
    with pytest.raises(Corrupt, match="ac/ab/k"):
        parse(UNSIGNED.to_bytes()[:size_bytes])


def test_envelope_shows_its_layout():
    header, payload = UNSIGNED.to_bytes().split(b"\n")
    assert header.startswith(b'{"format":2,"key":"k","kind":"manifest","payload":{"sha256":"')
    assert header.endswith(b'","size_bytes":7},"signature":"unsigned"}')
    assert payload == b'{"a":1}'


def test_envelope_of_a_newer_format_is_named():
    with pytest.raises(NewerFormat, match="format 3"):
        parse(UNSIGNED.to_bytes().replace(b'"format":2', b'"format":3'))


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
    data = UNSIGNED.to_bytes().replace(old, new)
    if b"format" not in data:
        data = data.replace(b'"signature"', b'"format":2,"signature"')
    with pytest.raises(Corrupt, match="canonical JSON"):
        parse(data)


@pytest.mark.parametrize(("kind", "key"), [("manifest", "kx"), ("launch", "k"), ("manifestk", "")])
def test_signed_message_tells_kind_and_key_apart(kind, key):
    assert signed_message(kind, key, P, PRODUCER) != signed_message("manifest", "k", P, PRODUCER)


@pytest.mark.parametrize("field", [{"name": "cj"}, {"key_id": "1" * 32}])
def test_signed_message_depends_on_the_producer(field):
    other = PRODUCER.model_copy(update=field)
    assert signed_message("m", "k", P, PRODUCER) != signed_message("m", "k", P, other)
