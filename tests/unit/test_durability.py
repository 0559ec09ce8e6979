from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from warmrank.cache_store.backends import durability
from warmrank.cache_store.backends.durability import choose_flush, file_system_type, flush_all

MOUNTS = r"""/dev/sda / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
nas:/export /mnt/shared nfs4 rw 0 0
scratch /mnt/shared/scratch lustre rw 0 0
/dev/sdb /mnt/with\040blank xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/store", "ext4"),
        ("/mnt/shared/store", "nfs4"),
        ("/mnt/shared", "nfs4"),
        ("/mnt/sharedstore", "ext4"),
        ("/mnt/shared/scratch/a/b", "lustre"),
        ("/mnt/with blank/store", "xfs"),
    ],
)
def test_file_system_type_is_that_of_the_deepest_mount(path, expected):
    assert file_system_type(Path(path), MOUNTS) == expected


@pytest.mark.parametrize(
    ("kind", "flush"), [("ext4", "syncfs"), ("xfs", "syncfs"), ("nfs4", "fsync"), ("fuse.gpfs", "fsync")]
)
def test_choose_flush_trusts_syncfs_on_local_file_systems_only(tmp_path, monkeypatch, kind, flush):
    table = tmp_path / "mounts"
    table.write_text(f"device / {kind} rw 0 0\n")
    monkeypatch.setattr(durability, "_MOUNTS", table)
    assert choose_flush(tmp_path) == flush


class Calls:
    """Counts what is flushed, and how."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fsynced: list[str] = []
        self.synced: list[Path] = []
        monkeypatch.setattr(durability, "_fsync", lambda path: self.fsynced.append(path.name))
        monkeypatch.setattr(durability, "_sync_file_system", self.synced.append)


def paths(root: Path, count: int) -> list[Path]:
    return [root / f"{number:02d}" for number in range(count)]


def test_flush_all_syncs_the_file_system_once_for_many(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    flush_all(paths(tmp_path, 20), root=tmp_path, flush="syncfs")
    assert (calls.synced, calls.fsynced) == ([tmp_path], [])


def test_flush_all_reports_what_cannot_be_flushed(tmp_path):
    with pytest.raises(FileNotFoundError):
        flush_all([tmp_path / "gone"], root=tmp_path, flush="fsync")


def failing_fsync(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)


def test_flush_all_hides_no_fault_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    failing_fsync(errno.EINVAL, monkeypatch)
    with pytest.raises(OSError, match="Invalid argument"):
        flush_all([tmp_path / "file"], root=tmp_path, flush="fsync")
