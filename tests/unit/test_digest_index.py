"""Digests that need not be computed again: right whatever happens to the files and to the index."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmrank.cache_store.cache_dir import digest_index
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.digests import Digest, digest_bytes, digest_stream

DATA = b"bytes of an artifact"
OTHER = DATA[::-1]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


@pytest.fixture
def file(cache: Path) -> Path:
    return private_file(cache / "f" / "compiled_module", DATA)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Digest]:
    """One digest for each file that was read."""
    digests: list[Digest] = []

    def recording(source):
        digests.append(digest_stream(source))
        return digests[-1]

    monkeypatch.setattr(digest_index, "digest_stream", recording)
    return digests


def private_file(path: Path, data: bytes, *, age_s: int = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    os.utime(path, ns=(path.stat().st_mtime_ns - age_s * 10**9,) * 2)
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the file system is an hour ahead: ctime cannot be set back, so files must grow old."""
    clock_ns = DigestIndex._clock_ns
    monkeypatch.setattr(DigestIndex, "_clock_ns", lambda self: clock_ns(self) + 3600 * 10**9)


def saved(cache: Path, *files: Path) -> None:
    index = DigestIndex.open(cache, "one")
    for file in files:
        index.digest(file)
    index.save()


@pytest.mark.usefixtures("settled")
def test_digest_of_an_unchanged_file_is_not_computed_again(cache, file, hashed):
    saved(cache, file)
    assert DigestIndex.open(cache, "one").digest(file) == digest_bytes(DATA)
    assert len(hashed) == 1


def test_file_written_at_the_time_of_the_read_is_read_again(cache, file, hashed):
    saved(cache, file)
    DigestIndex.open(cache, "one").digest(file)
    assert len(hashed) == 2


def rewrite(file: Path) -> None:
    file.write_bytes(OTHER)


def replace(file: Path) -> None:
    private_file(file.with_name("new"), OTHER).replace(file)


def keep_times(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def changed(file: Path) -> None:
        before = file.stat()
        change(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    return changed


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "change", [rewrite, replace, keep_times(rewrite), keep_times(replace)], ids=["w", "r", "wt", "rt"]
)
def test_changed_file_is_read_again_whatever_its_size_and_time(cache, file, change):
    saved(cache, file)
    change(file)
    assert DigestIndex.open(cache, "one").digest(file) == digest_bytes(OTHER)


@pytest.mark.usefixtures("settled")
def test_file_that_became_a_link_is_refused(cache, file):
    saved(cache, file)
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")
    with pytest.raises(OSError, match="symbolic links"):
        DigestIndex.open(cache, "one").digest(file)


@pytest.mark.usefixtures("settled")
def test_file_that_changes_while_it_is_read_is_not_remembered(cache, file, monkeypatch):
    def changing(source):
        digest = digest_stream(source)
        file.write_bytes(OTHER)
        return digest

    monkeypatch.setattr(digest_index, "digest_stream", changing)
    saved(cache, file)
    monkeypatch.undo()
    assert DigestIndex.open(cache, "one").digest(file) == digest_bytes(OTHER)


@pytest.mark.usefixtures("settled")
def test_remember_doubts_a_file_that_was_written_after_the_caller_began_to_read(cache, file):
    index = DigestIndex.open(cache, "one")
    read_ns = index.now_ns() - 3600 * 10**9
    file.write_bytes(OTHER)
    index.remember(file, digest_bytes(DATA), read_ns=read_ns)
    assert index.digest(file) == digest_bytes(OTHER)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data[:-20] + b"\0" * 20,
        lambda data: data.replace(b'"format":1', b'"format":2'),
        lambda data: data.replace(digest_bytes(DATA).sha256.encode(), b"0" * 64),
        lambda data: b'"' + digest_bytes(b"[]").sha256.encode() + b'"\n[]\n',
        lambda data: b"\xff" * 100,
        lambda data: b"[" * 100_000,
    ],
    ids=["empty", "truncated", "zeroed", "newer", "flipped", "no object", "no text", "deep"],
)
def test_damaged_index_is_empty(cache, file, hashed, damage):
    saved(cache, file)
    path = cache / ".index" / "one.json"
    path.write_bytes(damage(path.read_bytes()))
    assert DigestIndex.open(cache, "one").digest(file) == digest_bytes(DATA)
    assert len(hashed) == 2


@pytest.mark.parametrize("name", ["../one", "a/b", ""])
def test_name_that_leaves_the_directory_is_refused(cache, name):
    with pytest.raises(ValueError, match="name of an index"):
        DigestIndex.open(cache, name)


@pytest.mark.usefixtures("settled")
def test_threads_that_save_at_once_leave_a_whole_index(cache):
    files = [private_file(cache / str(number) / "compiled_module", DATA) for number in range(20)]

    def run(_: int) -> None:
        for _ in range(5):
            saved(cache, *files)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    assert len(DigestIndex.open(cache, "one")._seen) == 20
