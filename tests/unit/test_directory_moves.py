"""Moves within a store in a directory: by a rename that does not replace, or by links."""

from __future__ import annotations

import errno
import itertools
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.stored import stored
from warmrank.cache_store.backends import directory_moves
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.layout import trash_name
from warmrank.cache_store.steps import Step

NAME = "ac/ab/one"
TRASHED = "trash/20260131T120000Z/ac/ab/one"


def new_file(name: str = NAME, data: bytes = b"data") -> NewFile:
    return NewFile(name=name, source=data, expected=digest_bytes(data))


def unsupported(path: Path, target: Path) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.fixture(params=["rename", "link", "unsupported"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How files are moved: network file systems have links only, and some others refuse the rename."""
    types = frozenset({"link"}) if request.param == "link" else None
    monkeypatch.setattr(directory_moves, "file_system_type", lambda path, mounts: "ext4")
    if types is not None:
        monkeypatch.setattr(directory_moves, "_RENAME_TYPES", types)
    if request.param == "unsupported":
        monkeypatch.setattr(directory_moves, "rename_new", unsupported)
    return str(request.param)


@pytest.fixture
def backend(root: Path, way: str) -> DirectoryBackend:
    return DirectoryBackend(root)


def test_rename_does_not_replace(tmp_path):
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "two").write_bytes(b"two")
    with pytest.raises(FileExistsError):
        directory_moves.rename_new(tmp_path / "one", tmp_path / "two")
    assert ((tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes()) == (b"one", b"two")


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


@pytest.mark.parametrize("way", ["link", "unsupported"], indirect=True)
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

    monkeypatch.setattr(directory_moves, "reached", at)
    assert not backend.move(NAME, first)
    assert meanwhile == ["begun", True, (NAME,)]
    assert (root / NAME).read_bytes() == b"new"
    assert ((root / second).read_bytes(), stored(root, "tmp")) == (b"old", [])


def test_move_makes_a_directory_again_that_another_process_removes(backend, root, way, monkeypatch):
    backend.put_new([new_file()])
    real = directory_moves.rename_new if way == "rename" else os.link
    removed: list[Path] = []

    def call(source: Path, target: Path) -> None:
        if target.parent.is_dir() and not removed:
            removed.append(target)
            target.parent.rmdir()
            target.parent.parent.rmdir()
        real(source, target)

    monkeypatch.setattr(*((directory_moves, "rename_new") if way == "rename" else (os, "link")), call)
    assert backend.move(NAME, TRASHED)
    assert (removed, stored(root, "trash")) == ([root / TRASHED], [root / TRASHED])


def test_directory_deeper_than_any_stack_is_removed(backend, root):
    top = root / "quarantine" / "deep"
    top.mkdir(parents=True)
    directory = os.open(top, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("a", dir_fd=directory)
        below = os.open("a", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    assert [info.name for info in backend.list("quarantine/")] == ["quarantine/deep"]
    assert backend.move("quarantine/deep", None)
    assert (list(backend.list("quarantine/")), list((root / "tmp").iterdir())) == ([], [])
