from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import Conflict, Corrupt, NewerFormat, StoreUnavailable
from cache_store.local import UNVERIFIED
from cache_store.manifest import parse_manifest
from cache_store.store import Store
from tests.support.stored import (
    LAUNCH_KEY,
    OFF,
    make_partition,
    open_store,
    overwrite,
    publish_launch,
    stored,
    tree,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Store:
    return open_store(root)


@pytest.fixture
def key(store: Store, tmp_path: Path) -> str:
    manifest = make_partition(tmp_path / "cache")
    return store.publish_partition(LAUNCH_KEY, manifest, tmp_path / "cache").key


def test_store_knows_its_location(root):
    assert (open_store(root).location, Store.open(str(root), trust=OFF).location) == (str(root), str(root))


def test_store_at_an_url_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"s3://bucket/x.*name a directory"):
        Store.open("s3://bucket/x", trust=OFF)
    assert list(tmp_path.iterdir()) == []


def test_store_that_must_exist_is_not_created(root):
    with pytest.raises(StoreUnavailable, match="no store here"):
        Store.open(root, trust=OFF, create=False)


def test_pinned_manifest_is_taken_only_as_pinned(store, key):
    with pytest.raises(Conflict, match="published again since"):
        store.manifest(key, expected_sha256="0" * 64)


def test_flipped_bit_in_a_manifest_is_corrupt_and_quarantined(store, root, key):
    (path,) = stored(root, "ac")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    overwrite(path, bytes(data))
    with pytest.raises(Corrupt, match=key):
        store.manifest(key)
    assert stored(root, "ac") == []


def test_newer_manifest_is_refused_and_stays(store, root, key):
    (path,) = stored(root, "ac")
    payload = path.read_bytes().split(b"\n", 1)[1].replace(b'"format":1', b'"format":2')
    overwrite(path, OFF.seal("manifest", key, payload))
    with pytest.raises(NewerFormat, match="format 2"):
        store.manifest(key)
    assert stored(root, "ac") == [path]


def test_manifest_with_path_traversal_is_refused(store, root, key, tmp_path):
    (path,) = stored(root, "ac")
    payload = path.read_bytes().split(b"\n", 1)[1].replace(b'"Llama_dynamic', b'"../escaped')
    overwrite(path, OFF.seal("manifest", key, payload))
    before = tree(tmp_path / "fetched")
    with pytest.raises(Corrupt, match=r"has the part '\.\.'"):
        store.fetch_partition(key, tmp_path / "fetched")
    assert tree(tmp_path / "fetched") == before


def test_oversized_manifest_is_refused(store, root, key, monkeypatch):
    monkeypatch.setattr("cache_store.documents._MAX_ENVELOPE_BYTES", 100)
    with pytest.raises(Corrupt, match="at most 100 bytes"):
        store.manifest(key)


def test_stored_manifest_is_readable_without_tools(store, root, key, tmp_path):
    (path,) = stored(root, "ac")
    lines = path.read_bytes().split(b"\n")
    assert parse_manifest(lines[1], "here") == make_partition(tmp_path / "cache")
    assert len(lines) == 2


def test_launch_goes_from_one_cache_to_another(store, root, tmp_path):
    record = publish_launch(store, tmp_path / "source", world_size=3)
    for ref in record.partitions:
        store.fetch_partition(ref.manifest_key, tmp_path / "cache", expected_sha256=ref.manifest_sha256)
    (tmp_path / "cache" / UNVERIFIED).unlink()
    assert tree(tmp_path / "cache") == tree(tmp_path / "source")
    assert len(stored(root, "cas")) == 2
