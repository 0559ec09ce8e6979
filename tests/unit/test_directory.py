"""The store in a directory: durable names, odd files, moves."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.backends import alone, read
from tests.support.stored import stored
from warmrank.cache_store.backends import directory
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import (
    DirectoryBackend,
    choose_flush,
    file_system_type,
    flush_all,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreUnavailable
from warmrank.cache_store.layout import trash_name
from warmrank.cache_store.steps import Step

NAME = "ac/ab/one"


@pytest.fixture
def backend(root: Path) -> DirectoryBackend:
    return DirectoryBackend(root)


def new_file(name: str = NAME, data: bytes = b"data") -> NewFile:
    return NewFile(name=name, source=data, expected=digest_bytes(data))


def test_directory_with_other_files_is_no_store(root):
    root.mkdir()
    (root / "thesis.tex").touch()
    with pytest.raises(StoreUnavailable, match=r"'thesis.tex'"):
        DirectoryBackend(root)
    assert os.listdir(root) == ["thesis.tex"]  # noqa: PTH208


def test_store_whose_creation_was_cut_short_is_completed(root):
    (root / "tmp" / "host-1-x").mkdir(parents=True)
    DirectoryBackend(root)
    assert (root / "FORMAT").exists()


@pytest.mark.parametrize("is_mount_point", [True, False])
def test_put_new_writes_nothing_where_the_store_was(backend, root, tmp_path, is_mount_point):
    """A file system that is unmounted while a launch runs leaves its mount point, on this node's disk."""
    root.rename(tmp_path / "elsewhere")
    if is_mount_point:
        root.mkdir()
    with pytest.raises(
        StoreUnavailable, match="its FORMAT is gone; check that the store's directory is mounted"
    ):
        backend.put_new([new_file()])
    assert not root.exists() or not any(root.iterdir())


def test_put_new_that_fails_leaves_nothing(backend, root, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(directory, "flush_all", full)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        backend.put_new([new_file()])
    assert (list((root / "tmp").iterdir()), stored(root, "ac")) == ([], [])


def test_put_new_flushes_bytes_before_names_and_names_last(root, monkeypatch):
    steps: list[str] = []

    def flush(paths, *, root: Path, flush: str) -> None:
        paths = list(map(Path, paths))
        steps.append(f"{'names' if paths[0].is_dir() else 'bytes'} of {len(paths)}")

    def record(source: str, target: str) -> None:
        steps.append(f"link {Path(target).relative_to(root)}")
        link(source, target)

    link = os.link
    backend = DirectoryBackend(root)
    monkeypatch.setattr(directory, "flush_all", flush)
    monkeypatch.setattr(os, "link", record)
    backend.put_new([new_file("ac/ab/1"), new_file("ac/ab/2")])
    assert list(dict.fromkeys(steps)) == ["bytes of 2", "link ac/ab/1", "link ac/ab/2", "names of 3"]


def test_put_new_flushes_directories_above_again_after_a_flush_that_failed(backend, root, monkeypatch):
    flushed: set[str] = set()

    def fail(paths, **_: object) -> None:
        flushed.update(os.path.relpath(path, root) for path in paths)
        if "cas" in flushed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(directory, "flush_all", fail)
    for _ in range(2):
        flushed.clear()
        with pytest.raises(StoreUnavailable):
            backend.put_new([new_file("cas/sha256/ab/1")])
        assert {".", "cas", "cas/sha256", "cas/sha256/ab"} <= flushed


def test_put_new_recognises_its_own_link_whose_answer_was_lost(backend, monkeypatch):
    link = os.link

    def lossy(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lossy)
    assert backend.put_new([new_file()]) == (NAME,)


ODD_NAMES = [b"a\\b", b"a\nb", b"\xff\xfe"]


def make_socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to nowhere": lambda path: path.symlink_to("/nonexistent"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to a file": lambda path: path.symlink_to("../../FORMAT"),
    "directory": Path.mkdir,
    "socket": make_socket,
}


@pytest.fixture(params=OBSTACLES)
def obstacle(
    request: pytest.FixtureRequest, backend: DirectoryBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.chdir(root)
    path = root / NAME
    path.parent.mkdir(parents=True)
    OBSTACLES[request.param](path)
    return path


def test_what_is_no_file_is_corrupt(backend, obstacle):
    with pytest.raises(Corrupt, match="expected a regular file"):
        backend.open(NAME)


def test_what_is_no_file_goes_into_quarantine_and_makes_way(backend, obstacle):
    assert backend.put_new([new_file()]) == ()
    with pytest.raises(Corrupt):
        read(alone(backend), NAME)
    assert backend.put_new([new_file()]) == (NAME,)
    with backend.open(NAME) as file:
        assert file.read() == b"data"
    bad, _ = sorted(backend.list("quarantine/"), key=lambda info: info.is_regular)
    assert backend.move(bad.name, None)
    assert (len(stored(backend.root, "quarantine")), list((backend.root / "tmp").iterdir())) == (1, [])


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("directory", ["ac/ab", "trash/20200101T000000Z", "quarantine"])
def test_odd_name_is_left_out_and_said(backend, root, caplog, directory, name):
    (root / directory).mkdir(parents=True, exist_ok=True)
    Path(os.fsdecode(os.fsencode(root / directory) + b"/" + name)).touch()
    backend.put_new([new_file(f"{directory}/good")])
    assert [info.name for info in backend.list(directory.partition("/")[0])] == [f"{directory}/good"]
    assert caplog.text.count("is no name of a store") == 1


def test_private_directory_of_another_user_is_left_out_and_no_other_that_is_closed(
    backend, root, monkeypatch
):
    scandir = os.scandir

    def guarded(path: str) -> object:
        if path.rstrip("/").endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    for name in ("tmp/closed/0", "tmp/mine/0", "ac/closed/k"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"data")
    monkeypatch.setattr(os, "scandir", guarded)
    assert [info.name for info in backend.list("tmp/")] == ["tmp/mine/0"]
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        list(backend.list("ac/"))


@pytest.mark.parametrize(
    ("of_root", "umask", "expected"),
    [(0o755, 0o002, 0o755), (0o700, 0o000, 0o755), (0o775, 0o002, 0o775), (0o775, 0o022, 0o755)],
)
def test_others_may_write_into_new_directories_only_where_they_may_into_the_root(
    root, of_root, umask, expected
):
    root.mkdir()
    root.chmod(of_root)
    before = os.umask(umask)
    try:
        backend = DirectoryBackend(root)
        backend.put_new([new_file("cas/sha256/ab/one")])
        backend.move("cas/sha256/ab/one", "trash/20260131T120000Z/cas/sha256/ab/one")
    finally:
        os.umask(before)
    made = [path for path in root.rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {expected}
    assert len(made) == 9


TRASHED = "trash/20260131T120000Z/ac/ab/one"


def test_moved_file_counts_from_its_move(backend):
    backend.put_new([new_file()])
    made = backend.stat([NAME])[NAME].modified_s
    for number in itertools.count():
        backend.put_new([new_file(f"ac/ab/{number}", b"")])
        later = backend.stat([f"ac/ab/{number}"])[f"ac/ab/{number}"].modified_s
        if later > made:
            break
    backend.move(NAME, TRASHED)
    assert backend.stat([TRASHED])[TRASHED].modified_s >= later


def test_move_that_was_cut_short_between_its_calls_is_finished(backend, root):
    backend.put_new([new_file()])
    (root / TRASHED).parent.mkdir(parents=True)
    os.link(root / NAME, root / TRASHED)
    assert backend.move(TRASHED, NAME)
    assert (stored(root, "trash"), (root / NAME).read_bytes()) == ([], b"data")


def test_move_that_stands_still_takes_no_newer_file_away(backend, root, monkeypatch):
    """Two evictors: while the first stands between its two calls, the name is moved and created anew."""
    first, second = (trash_name(NAME, datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)) for second in (1, 2))
    backend.put_new([new_file(data=b"old")])
    meanwhile: list[object] = []

    def at(step: Step) -> None:
        if step == Step.MOVE_LINKED and not meanwhile:
            meanwhile.append("begun")
            other = DirectoryBackend(root)
            meanwhile.append(other.move(NAME, second))
            meanwhile.append(other.put_new([new_file(data=b"new")]))

    monkeypatch.setattr(directory, "reached", at)
    assert not backend.move(NAME, first)
    assert meanwhile == ["begun", True, (NAME,)]
    assert (root / NAME).read_bytes() == b"new"
    assert ((root / second).read_bytes(), stored(root, "tmp")) == (b"old", [])


def test_move_makes_a_directory_again_that_another_process_removes(backend, root, monkeypatch):
    backend.put_new([new_file()])
    real = os.link
    removed: list[Path] = []

    def call(source: Path, target: Path) -> None:
        if target.parent.is_dir() and not removed:
            removed.append(target)
            target.parent.rmdir()
            target.parent.parent.rmdir()
        real(source, target)

    monkeypatch.setattr(os, "link", call)
    assert backend.move(NAME, TRASHED)
    assert (removed, stored(root, "trash")) == ([root / TRASHED], [root / TRASHED])


@pytest.mark.parametrize(("is_mine", "remedy"), [(True, "a file system that has"), (False, "with uid")])
def test_move_that_may_make_no_link_says_who_may(backend, root, monkeypatch, is_mine, remedy):
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    backend.put_new([new_file()])
    owner = (root / NAME).stat().st_uid
    monkeypatch.setattr(os, "link", refused)  # as Linux's fs.protected_hardlinks has it for files of others
    monkeypatch.setattr(os, "geteuid", lambda: owner if is_mine else owner + 1)
    with pytest.raises(StoreUnavailable, match=remedy):
        backend.move(NAME, TRASHED)


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
    monkeypatch.setattr(directory, "_MOUNTS", table)
    assert choose_flush(tmp_path) == flush


def test_flush_all_reports_what_cannot_be_flushed(tmp_path):
    with pytest.raises(FileNotFoundError):
        flush_all([tmp_path / "gone"], root=tmp_path, flush="fsync")
