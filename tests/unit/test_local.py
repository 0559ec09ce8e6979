"""Files of a cache directory: variants, privacy, digests, copies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmrank.cache_store.cache_dir import digest_index
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.local import FRESH_S, MAX_VARIANTS, add_variant, variants
from warmrank.cache_store.cache_dir.private_files import DEBRIS_AGE_S, ensure_cache_dir, sweep_debris
from warmrank.cache_store.digests import Digest, digest_bytes, digest_stream
from warmrank.cache_store.errors import Corrupt, UnusableCache


@pytest.fixture
def function_dir(tmp_path: Path) -> Path:
    return tmp_path / "Llama_0f" / "decode"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"data")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("wrong", [b"dbta", b"dat", b"data2"], ids=["flipped bit", "longer", "truncated"])
def test_add_variant_from_refuses_other_bytes(function_dir, source, wrong):
    with pytest.raises(Corrupt, match=str(source)):
        add_variant(function_dir, source, digest_bytes(wrong))
    assert list(function_dir.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_ensure_cache_dir_refuses_one_that_others_can_write(tmp_path, mode):
    path = tmp_path / "it's open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UnusableCache, match="chmod 700") as refused:
        ensure_cache_dir(path)
    advised = refused.value.remedy.rpartition("; or, ")[2]
    subprocess.run(advised, shell=True, check=True)  # noqa: S602 - as people would
    ensure_cache_dir(path)


def test_chmod_is_not_advised_where_it_would_not_help(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UnusableCache, match="a directory") as refused:
        ensure_cache_dir(tmp_path / "file")
    assert "chmod" not in refused.value.remedy
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnusableCache, match="owner uid 12345") as refused:
        ensure_cache_dir(tmp_path / "another's")
    assert "chmod" not in refused.value.remedy


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


def test_sweep_debris_removes_what_an_ended_process_left_and_nothing_that_may_be_in_use(tmp_path, ended_pid):
    host = os.uname().nodename
    debris = make_debris(tmp_path, host=host, pid=ended_pid, age_s=2 * DEBRIS_AGE_S)
    sweep_debris(tmp_path, ".tmp-")
    assert not debris.exists()
    kept = [
        make_debris(tmp_path, host=host, pid=os.getpid(), age_s=2 * DEBRIS_AGE_S),
        make_debris(tmp_path, host=host, pid=ended_pid, age_s=60.0),
        make_debris(tmp_path, host=f"not-{host}", pid=ended_pid, age_s=2 * DEBRIS_AGE_S),
    ]
    sweep_debris(tmp_path, ".tmp-")
    assert [path.exists() for path in kept] == [True, True, True]


DATA = b"bytes of an artifact"
OTHER = DATA[::-1]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


@pytest.fixture
def hashed_file(cache: Path) -> Path:
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
    """The clock is an hour ahead: ctime cannot be set back, so files must grow old."""
    clock_ns = DigestIndex.now_ns
    monkeypatch.setattr(DigestIndex, "now_ns", lambda self: clock_ns(self) + 3600 * 10**9)


def saved(cache: Path, *files: Path) -> None:
    index = DigestIndex(cache, "one")
    for hashed_file in files:
        index.digest(hashed_file)
    index.save()


@pytest.mark.usefixtures("settled")
def test_digest_of_an_unchanged_file_is_not_computed_again(cache, hashed_file, hashed):
    saved(cache, hashed_file)
    assert DigestIndex(cache, "one").digest(hashed_file) == digest_bytes(DATA)
    assert len(hashed) == 1


def test_file_written_at_the_time_of_the_read_is_read_again(cache, hashed_file, hashed):
    saved(cache, hashed_file)
    DigestIndex(cache, "one").digest(hashed_file)
    assert len(hashed) == 2


def rewrite(hashed_file: Path) -> None:
    hashed_file.write_bytes(OTHER)


def replace(hashed_file: Path) -> None:
    private_file(hashed_file.with_name("new"), OTHER).replace(hashed_file)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [rewrite, replace])
def test_changed_file_is_read_again_though_its_size_and_time_stay(cache, hashed_file, change):
    saved(cache, hashed_file)
    before = hashed_file.stat()
    change(hashed_file)
    os.utime(hashed_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hashed_file.stat().st_size == before.st_size
    assert DigestIndex(cache, "one").digest(hashed_file) == digest_bytes(OTHER)


@pytest.mark.usefixtures("settled")
def test_file_that_changes_while_it_is_read_is_not_remembered(cache, hashed_file, monkeypatch):
    def changing(source):
        digest = digest_stream(source)
        hashed_file.write_bytes(OTHER)
        return digest

    monkeypatch.setattr(digest_index, "digest_stream", changing)
    saved(cache, hashed_file)
    monkeypatch.undo()
    assert DigestIndex(cache, "one").digest(hashed_file) == digest_bytes(OTHER)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data[:-20] + b"\0" * 20,
        lambda data: data.replace(b'"format":2', b'"format":3'),
        lambda data: data.replace(digest_bytes(DATA).sha256.encode(), b"0" * 64),
        lambda data: b'"' + digest_bytes(b"[]").sha256.encode() + b'"\n[]\n',
        lambda data: b"\xff" * 100,
        lambda data: b"[" * 100_000,
    ],
    ids=["empty", "truncated", "zeroed", "newer", "flipped", "no object", "no text", "deep"],
)
def test_damaged_index_is_empty(cache, hashed_file, hashed, damage):
    saved(cache, hashed_file)
    path = cache / ".index" / "one.json"
    path.write_bytes(damage(path.read_bytes()))
    assert DigestIndex(cache, "one").digest(hashed_file) == digest_bytes(DATA)
    assert len(hashed) == 2


def make_stale(path: Path) -> None:
    moment = time.time() - 2 * FRESH_S
    os.utime(path, (moment, moment))


def test_oldest_variant_goes_beyond_the_limit(function_dir):
    # Of different sizes, because a comparison of bytes would read the others.
    for number in range(MAX_VARIANTS + 2):
        make_stale(add_variant(function_dir, bytes(number)))
    kept = [path.stat().st_size for path in variants(function_dir)]
    assert kept == list(range(2, MAX_VARIANTS + 2))


@pytest.mark.parametrize(("fraction_ns", "reads"), [(1, 1), (0, 2)])
def test_times_without_a_fraction_must_be_older(cache, hashed_file, hashed, monkeypatch, fraction_ns, reads):
    status = hashed_file.stat()
    whole_s = status.st_ctime_ns // 10**9
    read_ns = (whole_s + 1) * 10**9
    fields = (*digest_index._identity(status)[:3], whole_s * 10**9, whole_s * 10**9 + fraction_ns)
    monkeypatch.setattr(digest_index, "_identity", lambda status: (*fields, status.st_mode, status.st_uid))
    monkeypatch.setattr(DigestIndex, "now_ns", lambda self: read_ns)
    saved(cache, hashed_file)
    DigestIndex(cache, "one").digest(hashed_file)
    assert len(hashed) == reads
