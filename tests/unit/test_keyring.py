"""The keyring, the trust settings of a config, and places that ask for signatures."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.stored import publish_launch
from warmrank.cache_store.backends import durability
from warmrank.cache_store.errors import Corrupt, Untrusted, UnusableCache
from warmrank.cache_store.signing.keyring import (
    Revocation,
    generate,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
    read_keyring,
    revoke,
)
from warmrank.cache_store.signing.trust import choose_policy, entry_fault
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.config.store import TrustConfig, locate_trust
from warmrank.orchestrator.stores import open_store

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
OTHER = generate_key_pair("other")
REVOCATION = f"revoked/{key_id(OTHER.public_key)}.json"


def other_revoked(reason: str = "") -> Revocation:
    when = NOW.isoformat(timespec="seconds")
    return Revocation(key_id=key_id(OTHER.public_key), name="other", reason=reason, when=when)


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


REVOKED_ID = "1" * 32


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's keyring would be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "warmrank" / "keys"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that counts as one on a local disk, wherever the tests run."""
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\nserver:/x /mnt/nowhere nfs4 rw 0 0\n")
    monkeypatch.setattr(durability, "_MOUNTS", mounts)
    return tmp_path


def config(**fields: object) -> TrustConfig:
    return TrustConfig.model_validate(fields)


@pytest.mark.parametrize("name", ["ci", "build.farm", "ci_2"])
def test_signing_key_without_slash_or_suffix_is_a_key_of_the_keyring(tmp_path, usual, name):
    generate(usual, name)
    assert locate_trust(config(signing_key=name), base=tmp_path).signing_key == usual / f"{name}.pem"


def test_what_the_keyring_revokes_travels_with_the_config(tmp_path, usual):
    signer = generate(usual, "ci")
    revoke(usual, Revocation(key_id=key_id(signer.public_key)))
    located = locate_trust(config(revoked=[REVOKED_ID]), base=tmp_path)
    assert set(located.revoked) == {REVOKED_ID, key_id(signer.public_key)}


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


DIRECTORY = stat.S_IFDIR | 0o755


@pytest.mark.parametrize(
    ("path", "uid", "mode", "is_above", "reason"),
    [
        ("/store", 8, DIRECTORY, False, "belongs to uid 8"),
        ("/store", 0, DIRECTORY, False, "belongs to uid 0"),
        ("/store/FORMAT", 8, stat.S_IFREG | 0o644, False, "/store/FORMAT"),
        ("/store", 7, stat.S_IFDIR | 0o775, False, "others can write /store"),
        ("/store", 7, stat.S_IFDIR | 0o757, False, "mode 0757"),
        ("/store", 7, stat.S_IFDIR | 0o1777, False, "mode 1777"),
        ("/data", 8, DIRECTORY, True, "/data belongs to uid 8"),
        ("/data", 0, stat.S_IFDIR | 0o777, True, "others can write /data"),
    ],
)
def test_what_others_can_write_asks_for_signatures(path, uid, mode, is_above, reason):
    assert reason in entry_fault(path, uid, mode, own=7, is_above=is_above)


@pytest.mark.parametrize(("uid", "mode"), [(0, DIRECTORY), (0, stat.S_IFDIR | 0o1777), (7, DIRECTORY)])
def test_what_only_root_can_change_above_a_store_does_not(uid, mode):
    assert entry_fault("/", uid, mode, own=7, is_above=True) == ""


@pytest.mark.parametrize("location", ["s3://bucket/prefix", "gs://bucket", "az://container"])
def test_object_store_asks_for_signatures(location):
    assert choose_policy(location).policy == "require"


def test_directory_on_a_network_file_system_is_not_touched(local, monkeypatch):
    monkeypatch.setattr(Path, "resolve", lambda self: pytest.fail("looked at a mount that may be dead"))
    assert "nfs4" in choose_policy("/mnt/nowhere/store").reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("name", ["ac/ab/key", "launch/ab/key/record", "trash/time/dir/ab/key/listing"])
def test_store_with_a_document_of_another_user_asks_for_signatures(local, mode, name):
    path = local / "store" / name
    path.parent.mkdir(parents=True)
    path.write_text("")
    (local / "store").chmod(mode)
    assert choose_policy(str(local / "store")).policy == "off"
    os.chown(path, 12345, 12345)
    assert f"{path} belongs to uid 12345" in choose_policy(str(local / "store")).reason


@pytest.mark.parametrize("directory", ["launch/ab/key", "ac/ab", "trash/20260131T120000Z/ac/ab"])
def test_directory_of_names_that_others_can_write_asks_for_signatures(local, directory):
    (local / "store" / directory).mkdir(parents=True)
    assert choose_policy(str(local / "store")).policy == "off"
    (local / "store" / directory).chmod(0o775)
    assert f"others can write {local}/store/{directory}" in choose_policy(str(local / "store")).reason


@pytest.mark.parametrize("target", ["/store", "../store"])
@pytest.mark.parametrize("name", ["open/link", "open/link/below", "first"])
def test_link_that_others_can_change_asks_for_signatures(local, name, target):
    (local / "store").mkdir()
    (local / "open").mkdir()
    (local / "open" / "link").symlink_to(f"{local}/store" if target[0] == "/" else target)
    (local / "first").symlink_to("open/link")
    assert choose_policy(str(local / name)).policy == "off"
    (local / "open").chmod(0o777)
    assert f"others can write {local}/open" in choose_policy(str(local / name)).reason


def test_link_on_a_network_file_system_asks_for_signatures(local, tmp_path):
    (local / "store").mkdir()
    (local / "shared").mkdir()
    (local / "shared" / "link").symlink_to(local / "store")
    (local / "first").symlink_to(local / "shared" / "link")
    assert choose_policy(str(local / "first")).policy == "off"
    with (local / "mounts").open("a") as mounts:
        mounts.write(f"server:/x {local}/shared nfs4 rw 0 0\n")
    assert "nfs4" in choose_policy(str(local / "first")).reason


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs", "cifs", "9p", ""])
def test_file_system_that_may_be_shared_asks_for_signatures(local, kind):
    (local / "mounts").write_text(f"server:/x / {kind} rw 0 0\n")
    choice = choose_policy(str(local / "store"))
    assert choice.policy == "require"
    assert (kind or "not known") in choice.reason
