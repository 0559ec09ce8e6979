from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.envelope import Envelope, Signature, parse_envelope, signed_message
from cache_store.errors import Corrupt, NewerFormat, StoreError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SIGNATURES = st.builds(
    Signature, name=TEXT, key_id=TEXT, value=st.binary(min_size=64, max_size=64).map(bytes.hex)
)
ENVELOPES = st.builds(
    Envelope, kind=TEXT, key=TEXT, payload=st.binary(max_size=64), signature=st.none() | SIGNATURES
)
UNSIGNED = Envelope(kind="manifest", key="k", payload=b'{"a":1}', signature=None)


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
    assert header.startswith(b'{"format":1,"key":"k","kind":"manifest","payload":{"sha256":"')
    assert header.endswith(b'","size_bytes":7},"signature":"unsigned"}')
    assert payload == b'{"a":1}'


def test_envelope_of_a_newer_format_is_named():
    with pytest.raises(NewerFormat, match="format 2"):
        parse(UNSIGNED.to_bytes().replace(b'"format":1', b'"format":2'))


def test_envelope_with_an_unknown_scheme_is_refused():
    signed = Envelope(
        kind="m", key="k", payload=b"", signature=Signature(name="", key_id="", value="0" * 128)
    )
    with pytest.raises(Corrupt, match="ed25519"):
        parse(signed.to_bytes().replace(b'"ed25519"', b'"ed25518"'))


@pytest.mark.parametrize(("kind", "key"), [("manifest", "kx"), ("launch", "k"), ("manifestk", "")])
def test_signed_message_tells_kind_and_key_apart(kind, key):
    assert signed_message(kind, key, b"payload") != signed_message("manifest", "k", b"payload")


def test_signed_message_depends_on_the_payload():
    assert signed_message("manifest", "k", b"payload") != signed_message("manifest", "k", b"Payload")
