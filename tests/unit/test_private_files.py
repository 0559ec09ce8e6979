from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmrank.cache_store.cache_dir.private_files import (
    DEBRIS_AGE_S,
    check_private,
    create_private,
    ensure_cache_dir,
    open_private,
    os_errors_are_unusable,
    read_private,
    sweep_debris,
)
from warmrank.cache_store.errors import UnusableCache, UnwritableDisk


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    path.chmod(0o600)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("wrong", [0o644, 0o660, 0o400, 0o700, 0o4600])
def test_check_private_refuses_another_mode_with_the_remedy(file, wrong):
    file.chmod(wrong)
    with pytest.raises(UnusableCache, match=rf"expected mode 0600, found mode {wrong:04o}.*chmod 600"):
        check_private(file)


def test_check_private_refuses_a_symlink(file):
    link = file.with_name("link")
    link.symlink_to(file)
    with pytest.raises(UnusableCache, match="a regular file"):
        check_private(link)


def test_open_private_does_not_follow_a_symlink(file):
    link = file.with_name("link")
    link.symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        open_private(link)


def test_open_private_does_not_wait_at_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe", mode=0o600)
    with pytest.raises(UnusableCache, match="a regular file"):
        open_private(tmp_path / "pipe")


def test_create_private_does_not_replace(file):
    with pytest.raises(FileExistsError):
        create_private(file)
    assert file.read_bytes() == b"data"


def test_ensure_cache_dir_refuses_another_owner(tmp_path, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UnusableCache, match="name a cache_dir of your own"):
        ensure_cache_dir(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_ensure_cache_dir_refuses_one_that_others_can_write(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(UnusableCache, match="chmod 700"):
        ensure_cache_dir(tmp_path / "open")


def test_read_private_refuses_a_file_that_others_can_read(file):
    file.chmod(0o644)
    with pytest.raises(UnusableCache, match="mode 0644"):
        read_private(file)


def make_debris(directory: Path, *, host: str, pid: int, age_s: float) -> Path:
    path = directory / f".tmp-{host}-{pid}-{'0' * 32}"
    path.mkdir()
    (path / "blob").touch()
    moment = time.time() - age_s
    os.utime(path, (moment, moment))
    return path


@pytest.fixture
def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_sweep_debris_removes_what_an_ended_process_left(tmp_path, ended_pid):
    debris = make_debris(tmp_path, host=os.uname().nodename, pid=ended_pid, age_s=2 * DEBRIS_AGE_S)
    sweep_debris(tmp_path, ".tmp-")
    assert not debris.exists()


def test_sweep_debris_leaves_what_may_be_in_use(tmp_path, ended_pid):
    host = os.uname().nodename
    kept = [
        make_debris(tmp_path, host=host, pid=os.getpid(), age_s=2 * DEBRIS_AGE_S),
        make_debris(tmp_path, host=host, pid=ended_pid, age_s=60.0),
        make_debris(tmp_path, host=f"not-{host}", pid=ended_pid, age_s=2 * DEBRIS_AGE_S),
    ]
    sweep_debris(tmp_path, ".tmp-")
    assert [path.exists() for path in kept] == [True, True, True]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_disk_that_takes_nothing_is_named_once_for_all_its_files(tmp_path, number):
    said = set()
    for name in ("a/one.tmp", "b/two.tmp"):
        with pytest.raises(UnwritableDisk) as caught, os_errors_are_unusable("file", tmp_path / name):
            raise OSError(number, os.strerror(number))
        said.add(str(caught.value))
    (text,) = said
    assert os.strerror(number) in text
    assert "name another cache_dir" in text
