"""Files beside a function's variants: written once, named by their bytes, damaged ones moved aside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from warmrank.cache_store.cache_dir import local
from warmrank.cache_store.cache_dir.local import (
    FRESH_S,
    MAX_VARIANTS,
    add_companion,
    add_companion_from,
    add_variant,
    companions,
    find_companion,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import UnusableCache
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


def test_damaged_companion_is_moved_aside_and_put_anew(function_dir: Path) -> None:
    path = add_companion(function_dir, NAME, DATA)
    path.write_bytes(b"torn")
    assert find_companion(function_dir, NAME, digest_bytes(DATA)) is None
    assert add_companion(function_dir, NAME, DATA).read_bytes() == DATA
    assert path.with_name(f"{NAME}.corrupt").read_bytes() == b"torn"


def test_source_that_others_could_have_written_is_refused(function_dir: Path, tmp_path: Path) -> None:
    source = add_companion(function_dir, NAME, DATA)
    source.chmod(0o644)
    with pytest.raises(UnusableCache):
        add_companion_from(tmp_path / "other", source, digest_bytes(DATA))


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
    assert len(local.variants(function_dir)) == MAX_VARIANTS


def test_manifest_takes_companions_and_nothing_else() -> None:
    def entry(path: str) -> ArtifactEntry:
        return ArtifactEntry(
            function="f", path=path, request_key="0" * 32, provenance="0" * 64, sha256="0" * 64, size_bytes=1
        )

    assert entry(f"model/forward/{NAME}").path.endswith(NAME)
    with pytest.raises(ValueError, match="no compiled_module"):
        entry("model/forward/other.pt2")
