from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support.stored import backend_of, open_store, publish_launch
from warmrank.cache_store.cache_dir.marks import UNVERIFIED, mark_unverified, refuse_unverified
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.layout import BLOBS


def test_unverified_directory_is_refused_under_require(tmp_path):
    mark_unverified(tmp_path, "off")
    with pytest.raises(UnusableCache, match="use another cache_dir, or empty this one"):
        refuse_unverified(tmp_path, "require")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """Each path that was flushed by its name, with what the mark there held by then."""
    flushed: list[tuple[str, bytes]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        mark = path if path.name == UNVERIFIED else path / UNVERIFIED
        flushed.append((path.name, mark.read_bytes() if mark.exists() else b""))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return flushed


def test_mark_is_durable_before_the_first_copy(tmp_path, synced, monkeypatch):
    store = open_store(tmp_path / "store")
    record = publish_launch(store, tmp_path / "source")
    synced.clear()
    before: list[list[str]] = []
    real = backend_of(store).open

    def note(name: str) -> BinaryIO:
        if name.startswith(BLOBS):
            before.append([path for path, _ in synced])
        return real(name)

    monkeypatch.setattr(backend_of(store), "open", note)
    assert store.fetch_partitions(record.partitions, tmp_path / "cache").faults == ()
    assert [flushed[:2] for flushed in before] == [[UNVERIFIED, "cache"]] * 2


def test_mark_that_cannot_be_made_durable_stops_the_fetch(tmp_path, monkeypatch):
    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UnusableCache, match="Input/output error"):
        mark_unverified(tmp_path, "off")
