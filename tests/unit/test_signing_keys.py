from __future__ import annotations

import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support.stored import save_key_pair
from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.signing.signing_keys import (
    Signer,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
    save_private_key,
    save_public_key,
)


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


def test_public_key_of_another_user_is_refused(signer, tmp_path, monkeypatch):
    _, public_path = save_key_pair(signer, tmp_path)
    status = list(public_path.stat())
    status[stat.ST_UID] = os.geteuid() + 1
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(status))
    with pytest.raises(UnusableCache, match="or root, found uid"):
        load_public_key(public_path)
