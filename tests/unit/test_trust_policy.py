from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from warmrank.cache_store.signing import trust_policy
from warmrank.cache_store.signing.trust_policy import Entry, StorePlace, choose_policy, resolve_policy

OWN = Entry(path="/store", uid=7, mode=stat.S_IFDIR | 0o755, is_above=False)
ROOT = Entry(path="/", uid=0, mode=stat.S_IFDIR | 0o755, is_above=True)
TMP = Entry(path="/tmp", uid=0, mode=stat.S_IFDIR | 0o1777, is_above=True)  # noqa: S108


def place(*entries: Entry, file_system: str = "ext4") -> StorePlace:
    return StorePlace(file_system=file_system, entries=entries)


def test_own_directory_on_a_local_disk_needs_no_signatures():
    assert resolve_policy(place(OWN, TMP, ROOT), uid=7).policy == "off"


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs", "cifs", "9p", ""])
def test_file_system_that_may_be_shared_asks_for_signatures(kind):
    choice = resolve_policy(place(OWN, ROOT, file_system=kind), uid=7)
    assert choice.policy == "require"
    assert (kind or "not known") in choice.reason


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry(path="/store", uid=8, mode=OWN.mode, is_above=False), "belongs to uid 8"),
        (Entry(path="/store", uid=0, mode=OWN.mode, is_above=False), "belongs to uid 0"),
        (Entry(path="/store/FORMAT", uid=8, mode=stat.S_IFREG | 0o644, is_above=False), "/store/FORMAT"),
        (Entry(path="/store", uid=7, mode=stat.S_IFDIR | 0o775, is_above=False), "others can write /store"),
        (Entry(path="/store", uid=7, mode=stat.S_IFDIR | 0o757, is_above=False), "mode 0757"),
        (Entry(path="/store", uid=7, mode=stat.S_IFDIR | 0o1777, is_above=False), "mode 1777"),
        (Entry(path="/data", uid=8, mode=OWN.mode, is_above=True), "/data belongs to uid 8"),
        (Entry(path="/data", uid=0, mode=stat.S_IFDIR | 0o777, is_above=True), "others can write /data"),
    ],
)
def test_place_that_others_can_write_asks_for_signatures(entry, reason):
    choice = resolve_policy(place(OWN, entry, ROOT), uid=7)
    assert choice.policy == "require"
    assert reason in choice.reason


@pytest.mark.parametrize("location", ["s3://bucket/prefix", "gs://bucket", "az://container"])
def test_object_store_asks_for_signatures(location):
    assert choose_policy(location).policy == "require"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that counts as one on a local disk, wherever the tests run."""
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\nserver:/x /mnt/nowhere nfs4 rw 0 0\n")
    monkeypatch.setattr(trust_policy, "_MOUNTS", mounts)
    return tmp_path


def test_directory_on_a_network_file_system_is_not_touched(local, monkeypatch):
    monkeypatch.setattr(Path, "resolve", lambda self: pytest.fail("looked at a mount that may be dead"))
    assert "nfs4" in choose_policy("/mnt/nowhere/store").reason


def test_store_that_others_can_write_asks_for_signatures(local):
    (local / "store").mkdir()
    (local / "store").chmod(0o775)
    assert choose_policy(str(local / "store")).policy == "require"


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


def test_what_others_can_write_is_no_matter_in_a_store_that_bars_them(local):
    (local / "store" / "ac" / "ab").mkdir(parents=True)
    (local / "store" / "ac" / "ab").chmod(0o777)
    (local / "store").chmod(0o700)
    assert choose_policy(str(local / "store")).policy == "off"
