from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import save_key_pair
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreError, Untrusted
from warmrank.cache_store.signing.keyring import Revocation, generate, revoke
from warmrank.cache_store.signing.signing_keys import generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust, TrustPolicy, load_trust

KEY, OTHER_KEY = "1" * 64, "2" * 64
PAYLOAD = b'{"a":1}'
SIGNER, STRANGER = generate_key_pair("ci"), generate_key_pair("stranger")
PUBLISHER = Trust(policy="require", signer=SIGNER)
READER = Trust(policy="require", trusted={"ci": SIGNER.public_key})
WARNING_READER = Trust(policy="warn", trusted={"ci": SIGNER.public_key})
OFF = Trust(policy="off")
REVOKED = {
    key_id(SIGNER.public_key): Revocation(
        key_id=key_id(SIGNER.public_key), when="2026-01-31T12:00:00+00:00", reason="laptop lost"
    )
}
SEALED = PUBLISHER.seal("manifest", KEY, PAYLOAD)
UNSIGNED = OFF.seal("manifest", KEY, PAYLOAD)


def refused(trust: Trust, data: bytes, *, key: str = KEY) -> str:
    with pytest.raises(Untrusted) as caught:
        trust.open_envelope("manifest", key, data, where="ac/11/1")
    assert "ac/11/1" in str(caught.value)
    return caught.value.reason


def test_replay_under_another_key_is_refused():
    assert refused(READER, SEALED, key=OTHER_KEY) == "replayed"


def test_replay_as_another_kind_is_refused():
    with pytest.raises(Untrusted, match="made for 'manifest'"):
        READER.open_envelope("launch", KEY, SEALED)


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


def test_replay_with_the_key_rewritten_is_refused():
    assert refused(READER, SEALED.replace(KEY.encode(), OTHER_KEY.encode()), key=OTHER_KEY) == "bad_signature"


def test_unsigned_is_refused_under_require():
    assert refused(READER, UNSIGNED) == "unsigned"


def test_unsigned_is_taken_under_warn_with_a_warning(caplog):
    assert WARNING_READER.open_envelope("manifest", KEY, UNSIGNED) == PAYLOAD
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "it carries no signature" in caplog.text


def test_unknown_signer_who_takes_a_trusted_name_is_refused():
    impostor = generate_key_pair("ci")
    sealed = Trust(policy="require", signer=impostor).seal("manifest", KEY, PAYLOAD)
    assert refused(READER, sealed) == "unknown_signer"


def test_unknown_signer_is_taken_under_warn_with_a_warning(caplog):
    sealed = Trust(policy="require", signer=STRANGER).seal("manifest", KEY, PAYLOAD)
    assert WARNING_READER.open_envelope("manifest", KEY, sealed) == PAYLOAD
    assert "'stranger'" in caplog.text


@pytest.mark.parametrize("policy", ["require", "warn"])
def test_wrong_signature_of_a_known_key_is_refused(policy: TrustPolicy):
    other = PUBLISHER.seal("manifest", KEY, b"other payload")
    forged = _with_signature_of(SEALED, other)
    assert refused(Trust(policy=policy, trusted={"ci": SIGNER.public_key}), forged) == "bad_signature"


def test_changed_payload_is_corrupt_under_every_policy():
    for trust in (READER, WARNING_READER, OFF):
        with pytest.raises(Corrupt, match="payload sha256"):
            trust.open_envelope("manifest", KEY, SEALED + b" ")


def test_seal_without_a_key_is_refused_under_require():
    with pytest.raises(Untrusted, match=r"no_signing_key.*trust\.signing_key"):
        READER.seal("manifest", KEY, PAYLOAD)


@given(position=st.integers(0, len(SEALED) - 1), bit=st.integers(0, 7))
def test_flipped_bit_is_refused_or_harmless(position, bit):
    data = bytearray(SEALED)
    data[position] ^= 1 << bit
    try:
        payload = READER.open_envelope("manifest", KEY, bytes(data))
    except StoreError:
        return
    assert payload == PAYLOAD


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


def _with_signature_of(sealed: bytes, other: bytes) -> bytes:
    def value(data: bytes) -> bytes:
        return data.split(b'"value":"')[1][:128]

    return sealed.replace(value(sealed), value(other))


def test_newer_envelope_is_refused_as_what_nobody_signed():
    newer = SEALED.replace(b'"format":2', b'"format":3')
    assert refused(READER, newer) == "unsigned"
    for trust in (WARNING_READER, OFF):
        with pytest.raises(NewerFormat):
            trust.open_envelope("manifest", KEY, newer)
