from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from warmrank.cache_store.errors import Conflict, Corrupt, UnusableCache
from warmrank.cache_store.signing.keyring import (
    Revocation,
    generate,
    private_path,
    read_keyring,
    revocation_of,
    revoke,
    trust_key,
)
from warmrank.cache_store.signing.signing_keys import generate_key_pair, key_id, load_public_key, load_signer

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
OTHER = generate_key_pair("other")
REVOCATION = f"revoked/{key_id(OTHER.public_key)}.json"


def other_revoked(reason: str = "") -> Revocation:
    return revocation_of(key_id(OTHER.public_key), name="other", reason=reason, now=NOW)


def test_generated_key_signs_and_is_trusted(tmp_path):
    signer = generate(tmp_path / "keys", "ci")
    assert key_id(load_signer(private_path(tmp_path / "keys", "ci")).public_key) == key_id(signer.public_key)
    assert [key_id(key) for key in read_keyring(tmp_path / "keys").trusted.values()] == [
        key_id(signer.public_key)
    ]


@pytest.mark.parametrize("use", [read_keyring, lambda keys: generate(keys, "other")])
def test_keyring_below_a_directory_that_others_can_write_is_refused(tmp_path, use):
    generate(tmp_path / "open" / "keys", "ci")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnusableCache, match="open has mode 0777"):
        use(tmp_path / "open" / "keys")


@pytest.mark.parametrize(("name", "load"), [("ci.pem", load_signer), ("trusted/ci.pub.pem", load_public_key)])
def test_key_file_below_a_directory_that_others_can_write_is_refused(tmp_path, name, load):
    generate(tmp_path / "open" / "keys", "ci")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnusableCache, match="open has mode 0777"):
        load(tmp_path / "open" / "keys" / name)


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize(
    "name",
    ["keys", "keys/trusted", "keys/revoked", f"keys/{REVOCATION}", "keys/trusted/ci.pub.pem"],
    ids=["keyring", "trusted", "revoked", "revocation", "key"],
)
def test_link_that_others_can_change_is_refused_on_the_way_to_a_key(tmp_path, name, is_gone):
    keys = tmp_path / "keys"
    generate(keys, "ci")
    revoke(keys, other_revoked())
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "moved")
    (tmp_path / name).rename(tmp_path / "moved")
    (tmp_path / name).symlink_to("open/link" if name == "keys" else tmp_path / "open" / "link")
    read_keyring(keys)
    (tmp_path / "open").chmod(0o777)
    if is_gone:
        (tmp_path / "open" / "link").unlink()
    with pytest.raises(UnusableCache, match="open has mode 0777"):
        read_keyring(keys)


def test_generate_overwrites_no_key(tmp_path):
    first = generate(tmp_path, "ci")
    with pytest.raises(Conflict, match="never overwritten"):
        generate(tmp_path, "ci")
    assert key_id(load_signer(private_path(tmp_path, "ci")).public_key) == key_id(first.public_key)


def test_trust_key_refuses_a_revoked_key(tmp_path):
    revoke(tmp_path, other_revoked("lost"))
    with pytest.raises(Conflict, match=r"revoked on 2026-01-31T12:00:00\+00:00 \(lost\)"):
        trust_key(tmp_path, "other", OTHER.public_key)
    assert read_keyring(tmp_path).trusted == {}


def test_revocations_at_once_are_all_kept(tmp_path):
    ids = [f"{number:032x}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda wanted: revoke(tmp_path, Revocation(key_id=wanted)), ids))
    assert sorted(read_keyring(tmp_path).revoked) == ids


def test_revocations_at_once_are_all_kept_where_locks_do_nothing(tmp_path, monkeypatch):
    ids = [f"{number:032x}" for number in range(8)]
    together = threading.Barrier(len(ids))

    def without_lock(*args: object, **kwargs: object) -> contextlib.nullcontext[None]:
        together.wait(timeout=30)
        return contextlib.nullcontext()

    monkeypatch.setattr("warmrank.cache_store.signing.keyring.FileLock", without_lock)
    with ThreadPoolExecutor(len(ids)) as pool:
        acknowledged = list(pool.map(lambda wanted: revoke(tmp_path, Revocation(key_id=wanted)), ids))
    assert [is_new for _, is_new in acknowledged] == [True] * len(ids)
    assert sorted(read_keyring(tmp_path).revoked) == ids


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":1,"name":"","reason":""}'])
def test_damaged_revocation_is_not_passed_over(tmp_path, text):
    standing, _ = revoke(tmp_path, other_revoked())
    (tmp_path / "revoked" / f"{standing.key_id}.json").write_text(text)
    with pytest.raises(Corrupt, match=rf"revocation at .*{standing.key_id}\.json.*restore it"):
        read_keyring(tmp_path)
    with pytest.raises(Corrupt, match="restore it"):
        revoke(tmp_path, other_revoked())


def test_revocation_shows_its_layout(tmp_path):
    standing, _ = revoke(tmp_path, other_revoked("lost"))
    assert json.loads((tmp_path / "revoked" / f"{standing.key_id}.json").read_text()) == {
        "format": 1,
        "name": "other",
        "reason": "lost",
        "when": "2026-01-31T12:00:00+00:00",
    }


@pytest.mark.parametrize(
    "place",
    [".", "trusted", "trusted/ci.pub.pem", "revoked", REVOCATION],
    ids=["root", "trusted", "key", "revoked", "entry"],
)
@pytest.mark.parametrize("bit", [stat.S_IWGRP, stat.S_IWOTH])
def test_keyring_that_others_can_write_is_refused(tmp_path, place, bit):
    generate(tmp_path / "keys", "ci")
    revoke(tmp_path / "keys", other_revoked())
    path = tmp_path / "keys" / place
    path.chmod(path.stat().st_mode | bit)
    with pytest.raises(UnusableCache, match="not writable by group or others"):
        read_keyring(tmp_path / "keys")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(
    "place",
    [".", "trusted", "trusted/ci.pub.pem", "revoked", REVOCATION],
    ids=["root", "trusted", "key", "revoked", "entry"],
)
def test_keyring_of_another_user_is_refused(tmp_path, place):
    generate(tmp_path / "keys", "ci")
    revoke(tmp_path / "keys", other_revoked())
    os.chown(tmp_path / "keys" / place, 12345, 12345)
    with pytest.raises(UnusableCache, match="uid 12345"):
        read_keyring(tmp_path / "keys")
