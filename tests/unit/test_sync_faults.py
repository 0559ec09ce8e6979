"""Pushing and pulling where the store, or the directory, is not as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored import stored
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.layout import BLOBS
from warmrank.cache_store.records import directory_listing
from warmrank.cache_store.records.directory_listing import (
    ListedFile,
    make_listing,
    newest_listing,
    parse_listing,
)
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import MAX_DOCUMENT_BYTES
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.sync.push import push


@pytest.fixture
def documents(root: Path) -> Documents:
    return Documents(backend=DirectoryBackend(root), trust=Trust(policy="off"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    (directory / "graph.py").write_bytes(b"def call(): ...\n")
    return directory


def test_names_that_are_one_where_case_is_ignored_are_left_out_with_a_word(documents, cache):
    (cache / "GRAPH.py").write_bytes(b"other")
    (cache / "ab").mkdir()
    (cache / "ab" / "x").write_bytes(b"x")
    (cache / "AB").mkdir()
    (cache / "AB" / "y").write_bytes(b"y")
    report = push(documents, "mine", cache, {})
    assert report.num_files == 2
    assert report.left_out == (
        "ab/x: 'AB' and 'ab' are one name where case is ignored",
        "graph.py: 'GRAPH.py' and 'graph.py' are one name where case is ignored",
    )
    listing = newest_listing(documents, report.key, []).listing
    assert [file.path for file in listing.files] == ["AB/y", "GRAPH.py"]


@pytest.mark.parametrize(
    ("tool", "components", "fault"),
    [
        ("a/b", {}, "tool.*has a slash"),
        ("mine", {"k" * 5000: "v"}, "components"),
        ("mine", {"k": "v" * (2 << 20)}, "components"),
        (
            "mine",
            {str(number): "v" * (1 << 20) for number in range(20)},
            f"at most {MAX_DOCUMENT_BYTES} bytes",
        ),
    ],
)
def test_what_a_listing_cannot_hold_is_refused_before_the_first_blob(
    documents, cache, root, tool, components, fault
):
    with pytest.raises(UnusableCache, match=fault) as caught:
        push(documents, tool, cache, components)
    assert "one by one" in caught.value.remedy
    assert stored(root, BLOBS) == []


def test_more_files_than_a_listing_can_hold_are_refused_before_the_first_blob(
    documents, cache, root, monkeypatch
):
    monkeypatch.setattr(directory_listing, "MAX_DOCUMENT_BYTES", 600)
    assert push(documents, "mine", cache, {}).created
    for number in range(10):
        (cache / f"{number}.py").write_bytes(bytes([number]))
    before = stored(root, "")
    with pytest.raises(UnusableCache, match="for 11 files"):
        push(documents, "mine", cache, {})
    assert stored(root, "") == before


@pytest.mark.slow
def test_largest_listing_that_is_made_can_be_read(tmp_path):
    file = ListedFile(path="x" * 200, sha256="0" * 64, size_bytes=1, executable=False, names_root=False)
    files = [file.model_copy(update={"path": f"{number:0200}"}) for number in range(45_000)]
    data = make_listing("mine", {}, tmp_path, files).to_bytes()
    assert MAX_DOCUMENT_BYTES * 0.8 < len(data) <= MAX_DOCUMENT_BYTES
    assert len(parse_listing(data, "here").files) == len(files)
    with pytest.raises(UnusableCache, match=f"at most {MAX_DOCUMENT_BYTES} bytes"):
        make_listing("mine", {}, tmp_path, [*files, *(
            file.model_copy(update={"path": f"y/{number:0190}"}) for number in range(10_000)
        )])  # fmt: skip
