from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.support.stored import stored
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.backends.objects.store import _FORMAT_DATA
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NewerFormat, StoreUnavailable

NAME = "ac/ab/one"


@pytest.fixture
def backend(root: Path) -> DirectoryBackend:
    return DirectoryBackend(root)


def new_file(name: str = NAME, data: bytes = b"data") -> NewFile:
    return NewFile(name=name, source=data, expected=digest_bytes(data))


def failing(number: int):
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_newer_store_is_refused_by_name(backend, root):
    (root / "FORMAT").chmod(0o600)
    (root / "FORMAT").write_text('{"format":2,"digest":"blake3"}')
    with pytest.raises(NewerFormat, match=r"format 2.*upgrade warmrank"):
        DirectoryBackend(root)


def test_object_store_seen_as_a_directory_is_told_by_its_remedy(backend, root):
    (root / "FORMAT").chmod(0o600)
    (root / "FORMAT").write_bytes(_FORMAT_DATA)
    with pytest.raises(Corrupt, match="opened by its URL"):
        DirectoryBackend(root)


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


def test_stored_files_are_read_only(backend, root):
    backend.put_new([new_file()])
    assert stat.S_IMODE((root / NAME).stat().st_mode) & 0o333 == 0


def test_put_new_that_fails_leaves_nothing(backend, root, monkeypatch):
    monkeypatch.setattr(backend, "_flush_files", failing(errno.ENOSPC))
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        backend.put_new([new_file()])
    assert (list((root / "tmp").iterdir()), stored(root, "ac")) == ([], [])


def test_put_new_flushes_bytes_before_names_and_names_last(root, monkeypatch):
    steps: list[str] = []

    class Recording(DirectoryBackend):
        def _flush_files(self, paths):
            steps.append(f"bytes of {len(list(paths))}")

        def _link(self, path, name):
            steps.append(f"link {name}")
            return super()._link(path, name)

        def _flush_names(self, names):
            steps.append(f"names of {len(list(names))}")

    backend = Recording(root)
    steps.clear()
    backend.put_new([new_file("ac/ab/1"), new_file("ac/ab/2")])
    assert steps == ["bytes of 2", "link ac/ab/1", "link ac/ab/2", "names of 2"]


def test_put_new_flushes_every_directory_up_to_the_root(backend, root, monkeypatch):
    flushed: list[str] = []
    monkeypatch.setattr(
        "warmrank.cache_store.backends.directory.flush_all",
        lambda paths, **_: flushed.extend(os.path.relpath(path, root) for path in paths),
    )
    backend.put_new([new_file("cas/sha256/ab/1")])
    assert {"cas/sha256/ab", "cas/sha256", "cas", "."} <= set(flushed)


def test_put_new_flushes_directories_above_again_after_a_flush_that_failed(backend, root, monkeypatch):
    flushed: set[str] = set()

    def fail(paths, **_: object) -> None:
        flushed.update(os.path.relpath(path, root) for path in paths)
        if "cas" in flushed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("warmrank.cache_store.backends.directory.flush_all", fail)
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


def test_put_new_without_hard_links_says_so(backend, monkeypatch):
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with pytest.raises(StoreUnavailable, match="file system that has hard links"):
        backend.put_new([new_file()])


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "ac/../../outside", "", "ac\\ab"])
def test_name_that_leaves_the_store_is_refused(backend, name):
    for call in (backend.open, lambda name: backend.stat([name]), lambda name: backend.move(name, None)):
        with pytest.raises(StoreUnavailable, match="name"):
            call(name)
