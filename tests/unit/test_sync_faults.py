"""Pushing and pulling where the store, or the directory, is not as it should be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.backends import WaywardBackend, unavailable
from tests.support.stored import OFF, REPOSITORY, open_store, stored
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.errors import NotInStore, StoreUnavailable, UnusableCache
from warmrank.cache_store.layout import BLOBS
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES
from warmrank.cache_store.records import directory_listing
from warmrank.cache_store.records.directory_listing import (
    ListedFile,
    make_listing,
    newest_listing,
    parse_listing,
)
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import MAX_FILE_BYTES
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.cache_store.sync.pull import pull_lock
from warmrank.cache_store.sync.push import push

# Longer than a pull that goes on without the silent place takes, and shorter than its lock is waited for.
_TIMEOUT_S = 50


@pytest.fixture
def documents(root: Path) -> Documents:
    return Documents(backend=DirectoryBackend(root), trust=Trust(policy="off"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    (directory / "graph.py").write_bytes(b"def call(): ...\n")
    return directory


def test_pull_goes_on_without_a_place_that_falls_silent_and_the_process_ends(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.backends", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "20"), done.stderr


def test_miss_makes_no_directory_beside_the_one_that_was_asked_for(root, tmp_path):
    with pytest.raises(NotInStore):
        open_store(root).pull_directory("mine", tmp_path / "node" / "pulled", {})
    assert not (tmp_path / "node").exists()


def test_lock_of_a_pull_that_is_held_is_not_waited_for_for_ever(root, cache, tmp_path, caplog):
    store = open_store(root)
    store.push_directory("mine", cache, {})
    with pull_lock(tmp_path / "pulled"), pull_lock(tmp_path / "pulled", timeout_s=0.0):
        assert "beside its holder" in caplog.text
    assert store.pull_directory("mine", tmp_path / "pulled", {}).num_new == 1


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


def test_file_that_is_too_large_is_left_out_unread(documents, cache):
    with (cache / "huge").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (left_out,) = push(documents, "mine", cache, {}).left_out
    assert left_out.startswith("huge: ")
    assert f"at most {MAX_FILE_BYTES} bytes" in left_out


def test_required_place_that_is_away_ends_the_look_for_listings(cache):
    backend = WaywardBackend()
    Store(backend, trust=OFF, location="here").push_directory("mine", cache, {})
    documents = Documents(backend=backend, trust=OFF)
    (name,) = [info.name for info in backend.list("dir/")]
    key = name.split("/")[2]
    problems: list[str] = []
    backend.failure, backend.fails_on = unavailable(), frozenset({"open"})
    with pytest.raises(NotInStore):
        newest_listing(documents, key, problems)
    assert ["No space left" in line for line in problems] == [True]
    backend.failure.required = True
    with pytest.raises(StoreUnavailable):
        newest_listing(documents, key, [])
