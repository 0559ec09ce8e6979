"""What a config says of trust, and what the driver makes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.stored import publish_launch
from warmrank.cache_store.errors import Corrupt, Untrusted
from warmrank.cache_store.signing import trust_policy
from warmrank.cache_store.signing.keyring import Revocation, generate, revoke
from warmrank.cache_store.signing.signing_keys import key_id
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.config.store import TrustConfig, choice_of, locate_trust, warn_of_off
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.store.stores import open_store

REVOKED_ID = "1" * 32


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's keyring would be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "warmrank" / "keys"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\nserver:/x /mnt/nowhere nfs4 rw 0 0\n")
    monkeypatch.setattr(trust_policy, "_MOUNTS", mounts)
    return tmp_path


def config(**fields: object) -> TrustConfig:
    return TrustConfig.model_validate(fields)


@pytest.mark.parametrize("name", ["ci", "build.farm", "ci_2"])
def test_signing_key_without_slash_or_suffix_is_a_key_of_the_keyring(tmp_path, usual, name):
    generate(usual, name)
    assert locate_trust(config(signing_key=name), base=tmp_path).signing_key == usual / f"{name}.pem"


def test_signing_key_of_a_keyring_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(BadArgument, match=r"key ci.*warmrank keys generate"):
        locate_trust(config(signing_key="ci"), base=tmp_path)


def test_what_the_keyring_revokes_travels_with_the_config(tmp_path, usual):
    signer = generate(usual, "ci")
    revoke(usual, Revocation(key_id=key_id(signer.public_key)))
    located = locate_trust(config(revoked=[REVOKED_ID]), base=tmp_path)
    assert set(located.revoked) == {REVOKED_ID, key_id(signer.public_key)}


def test_damaged_revocations_stop_the_launch(tmp_path, usual):
    generate(usual, "ci")
    (usual / "revoked" / f"{REVOKED_ID}.json").write_text("")
    with pytest.raises(Corrupt, match="revocation at"):
        locate_trust(config(), base=tmp_path)


@pytest.mark.parametrize("shared", ["/mnt/nowhere/store", "s3://bucket"])
def test_policy_is_the_strictest_of_all_places(local, shared):
    policy, reason = choice_of(config(), [str(local / "store"), shared])
    assert policy == "require"
    assert reason.startswith(f"{shared}: ")


def test_off_is_warned_of_once_for_each_shared_place(local, caplog):
    warn_of_off(config(policy="off"), [str(local / "store"), "/mnt/nowhere/store"])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "/mnt/nowhere/store" in record.getMessage()


def test_store_of_a_config_signs_with_the_keyring_until_the_key_is_revoked(tmp_path, usual):
    signer = generate(usual, "ci")
    file = tmp_path / "launch.yaml"
    file.write_text(
        "workload: {entrypoint: 'a:b'}\nranks: 1\n"
        f"store: {{path: {tmp_path / 'store'}, trust: {{policy: require, signing_key: ci}}}}\n"
    )
    publish_launch(_store(file), tmp_path / "cache")
    assert len(_store(file).launches()) == 1
    revoke(usual, Revocation(key_id=key_id(signer.public_key), reason="lost"))
    assert _store(file).launches() == ()
    with pytest.raises(Untrusted, match=r"revoked.*lost"):
        publish_launch(_store(file), tmp_path / "other", environment={"torch": "2.12.0"})


def _store(file: Path) -> Store:
    config = load(file).store
    assert config is not None
    return open_store(config)
