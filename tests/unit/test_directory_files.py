"""What anybody who may write into a store can put there instead of files, and under odd names."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stored import stored
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.records.documents import quarantine_if_damaged

NAME = "ac/ab/one"
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


@pytest.fixture
def backend(root: Path) -> DirectoryBackend:
    return DirectoryBackend(root)


@pytest.fixture(params=OBSTACLES)
def obstacle(
    request: pytest.FixtureRequest, backend: DirectoryBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.chdir(root)
    path = root / NAME
    path.parent.mkdir(parents=True)
    OBSTACLES[request.param](path)
    return path


def new_file(name: str = NAME, data: bytes = b"data") -> NewFile:
    return NewFile(name=name, source=data, expected=digest_bytes(data))


def test_what_is_no_file_is_corrupt(backend, obstacle):
    with pytest.raises(Corrupt, match="expected a regular file"):
        backend.open(NAME)


def test_what_is_no_file_goes_into_quarantine_and_makes_way(backend, obstacle):
    assert backend.put_new([new_file()]) == ()
    with pytest.raises(Corrupt) as raised:
        backend.open(NAME)
    quarantine_if_damaged(backend, NAME, raised.value)
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
    assert "1 entries" in caplog.text
    assert "names that no store gives" in caplog.text


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
