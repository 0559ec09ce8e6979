"""Files beside a function's variants: written once, named by their bytes, damaged ones moved aside."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from warmrank.cache_store.cache_dir import names
from warmrank.cache_store.cache_dir.local import (
    FRESH_S,
    MAX_VARIANTS,
    add_companion,
    add_variant,
    companions,
    find_file,
)
from warmrank.cache_store.cache_dir.private_files import set_aside
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.records.manifest import ArtifactEntry

DATA = b"kernels"
NAME = f"ge_cache_{digest_bytes(DATA).sha256[:16]}.pt2"


@pytest.fixture
def function_dir(tmp_path: Path) -> Path:
    return tmp_path / "model" / "forward"


def test_companion_is_private_and_written_once(function_dir: Path) -> None:
    path = add_companion(function_dir, NAME, DATA)
    before = path.stat()
    assert add_companion(function_dir, NAME, DATA).stat().st_ino == before.st_ino
    assert (before.st_mode & 0o777, before.st_nlink) == (0o600, 1)
    assert companions(function_dir) == (path,)


def test_damaged_companion_that_cannot_be_moved_is_no_error(
    function_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = add_companion(function_dir, NAME, DATA)
    monkeypatch.setattr(Path, "replace", refused)
    set_aside(path)
    assert "stays where it is" in caplog.text
    assert path.read_bytes() == DATA


def test_damaged_companion_is_moved_aside_and_put_anew(function_dir: Path) -> None:
    path = add_companion(function_dir, NAME, DATA)
    path.write_bytes(b"torn")
    assert find_file(function_dir, digest_bytes(DATA), beside=NAME) is None
    assert add_companion(function_dir, NAME, DATA).read_bytes() == DATA
    assert path.with_name(f"{NAME}.corrupt").read_bytes() == b"torn"


def test_name_that_does_not_tell_the_bytes_is_refused(function_dir: Path) -> None:
    with pytest.raises(Corrupt):
        add_companion(function_dir, NAME, b"other")
    assert list(function_dir.iterdir()) == []


def test_copy_shares_no_inode_and_is_verified(function_dir: Path, tmp_path: Path) -> None:
    source = add_companion(function_dir, NAME, DATA)
    copy = add_companion(tmp_path / "other", NAME, source, digest_bytes(DATA))
    assert copy.stat().st_ino != source.stat().st_ino
    source.write_bytes(b"tampere")
    with pytest.raises(Corrupt):
        add_companion(tmp_path / "third", NAME, source, digest_bytes(DATA))


def test_source_that_others_could_have_written_is_refused(function_dir: Path, tmp_path: Path) -> None:
    source = add_companion(function_dir, NAME, DATA)
    source.chmod(0o644)
    with pytest.raises(UnusableCache):
        add_companion(tmp_path / "other", NAME, source, digest_bytes(DATA))


def test_trim_takes_what_no_variant_names_any_more(function_dir: Path) -> None:
    needed = b"needed"
    kept = add_companion(function_dir, f"ge_cache_{digest_bytes(needed).sha256[:16]}.pt2", needed)
    orphan = add_companion(function_dir, NAME, DATA)
    for number in range(MAX_VARIANTS):
        add_variant(function_dir, f"{number}".encode())
    old = time.time() - FRESH_S - 60
    for path in function_dir.iterdir():
        os.utime(path, (old, old))
    add_variant(function_dir, f"names {kept.name}".encode())
    assert companions(function_dir) == (kept,)
    assert not orphan.exists()
    assert len(names.variants(function_dir)) == MAX_VARIANTS


def test_manifest_takes_companions_and_nothing_else() -> None:
    def entry(path: str) -> ArtifactEntry:
        return ArtifactEntry(
            function="f", path=path, request_key="0" * 32, provenance="0" * 64, sha256="0" * 64, size_bytes=1
        )

    assert entry(f"model/forward/{NAME}").path.endswith(NAME)
    with pytest.raises(ValueError, match="no compiled_module"):
        entry("model/forward/other.pt2")
