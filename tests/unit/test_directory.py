from __future__ import annotations

import errno
import json
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
from warmrank.cache_store.records.documents import _USUAL_BYTES, read_stored_form

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


def test_new_store_writes_its_format(backend, root):
    assert json.loads((root / "FORMAT").read_bytes()) == {"format": 1, "digest": "sha256"}


def test_newer_store_is_refused_by_name(backend, root):
    (root / "FORMAT").chmod(0o600)
    (root / "FORMAT").write_text('{"format":2,"digest":"blake3"}')
    with pytest.raises(NewerFormat, match=r"format 2.*upgrade warmrank"):
        DirectoryBackend(root)


def test_damaged_format_is_corrupt(backend, root):
    (root / "FORMAT").chmod(0o600)
    (root / "FORMAT").write_text('{"format":1')
    with pytest.raises(Corrupt, match=r'FORMAT: .*restore its one line, {"format":1,"digest":"sha256"}'):
        DirectoryBackend(root)


def test_object_store_seen_as_a_directory_is_told_by_its_remedy(backend, root):
    (root / "FORMAT").chmod(0o600)
    (root / "FORMAT").write_bytes(_FORMAT_DATA)
    with pytest.raises(Corrupt, match="opened by its URL"):
        DirectoryBackend(root)


def test_no_store_is_an_error_when_none_may_be_created(root):
    with pytest.raises(StoreUnavailable, match="there is no store at"):
        DirectoryBackend(root, create=False)
    assert not root.exists()


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


def test_store_below_a_file_is_unavailable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        DirectoryBackend(tmp_path / "file" / "store")


def test_stored_files_are_read_only(backend, root):
    backend.put_new([new_file()])
    assert stat.S_IMODE((root / NAME).stat().st_mode) & 0o333 == 0


def test_put_new_leaves_nothing_in_tmp(backend, root):
    backend.put_new([new_file()])
    assert list((root / "tmp").iterdir()) == []


def test_put_new_that_fails_leaves_nothing(backend, root, monkeypatch):
    monkeypatch.setattr("warmrank.cache_store.backends.directory.flush_all", failing(errno.ENOSPC))
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
    monkeypatch.setattr("warmrank.cache_store.backends.directory.flush_all", flush)
    monkeypatch.setattr(os, "link", record)
    backend.put_new([new_file("ac/ab/1"), new_file("ac/ab/2")])
    assert list(dict.fromkeys(steps)) == ["bytes of 2", "link ac/ab/1", "link ac/ab/2", "names of 3"]


def test_put_new_with_a_fault_in_one_of_many_files_creates_none(backend, root):
    files = [new_file(f"cas/sha256/ab/{number}") for number in range(20)]
    files[10] = NewFile(name="cas/sha256/ab/10", source=b"other", expected=digest_bytes(b"data"))
    with pytest.raises(Corrupt, match="source of cas/sha256/ab/10"):
        backend.put_new(files)
    assert (stored(root, "cas"), list((root / "tmp").iterdir())) == ([], [])


@pytest.mark.parametrize("size_bytes", [0, _USUAL_BYTES - 1, _USUAL_BYTES, _USUAL_BYTES + 1])
def test_document_is_read_whole_whatever_its_size(backend, size_bytes):
    data = os.urandom(size_bytes)
    backend.put_new([new_file(data=data)])
    assert read_stored_form(backend, NAME) == data


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


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_fault_of_the_file_system_is_unavailable(backend, monkeypatch, number):
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(StoreUnavailable, match=os.strerror(number)):
        backend.open(NAME)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "ac/../../outside", "", "ac\\ab"])
def test_name_that_leaves_the_store_is_refused(backend, name):
    for call in (backend.open, lambda name: backend.stat([name]), lambda name: backend.move(name, None)):
        with pytest.raises(StoreUnavailable, match="name"):
            call(name)


def test_list_leaves_tmp_out(backend, root):
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp" / "left").touch()
    assert [info.name for info in backend.list("")] == ["FORMAT"]


def test_last_file_of_the_trash_takes_its_directories_with_it(backend, root):
    trashed = [f"trash/20260131T120000Z/ac/ab/{name}" for name in ("one", "two", "three")]
    for name in trashed:
        backend.put_new([new_file(name)])
    backend.move(trashed[0], None)
    backend.move(trashed[1], NAME)
    assert stored(root, "trash") == [root / trashed[2]]
    backend.move(trashed[2], None)
    assert list((root / "trash").iterdir()) == []
