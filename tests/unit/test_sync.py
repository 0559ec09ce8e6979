"""Directories of other tools: pushed, pulled, damaged, signed."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.backends import alone
from tests.support.stored import blob_path, overwrite, stored
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.cache_dir.marks import admit
from warmrank.cache_store.errors import (
    Conflict,
    Corrupt,
    NotInStore,
    RefusedCache,
    StoreUnavailable,
    Untrusted,
    UnusableCache,
)
from warmrank.cache_store.layout import BLOBS, DIRECTORIES
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.signing.keyring import Revocation, generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.sync import push as pushing
from warmrank.cache_store.sync.pull import pull
from warmrank.cache_store.sync.push import push
from warmrank.cache_store.sync.tools import is_ours

COMPONENTS = {"torch": "2.13.0", "per": "node"}


@pytest.fixture
def documents(root: Path) -> Documents:
    return Documents(places=alone(DirectoryBackend(root)), trust=Trust(policy="off"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A directory as another tool makes it: modes of the umask, a lock, and files on their way in."""
    directory = tmp_path / "cache"
    for name, data in {
        "ab/kernel.so": b"\x7fELF" * 1000,
        "ab/kernel.json": b"{}",
        "graph.py": b"def call(): ...\n",
        "again.py": b"def call(): ...\n",
        "empty": b"",
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    (directory / "ab" / "kernel.so").chmod(0o755)
    (directory / "locks").mkdir()
    (directory / "locks" / "graph.lock").touch()
    (directory / "graph.py.lock").touch()
    (directory / "new.1234.tmp").write_bytes(b"half")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not is_ours(path.relative_to(directory).as_posix())
    }


def kept(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(directory).items() if not name.endswith((".lock", ".tmp"))}


def test_pull_restores_what_push_stored_without_locks_and_temporary_files(documents, cache, tmp_path):
    push(documents, "mine", cache, COMPONENTS)
    report = pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    assert contents(tmp_path / "elsewhere") == kept(cache)
    assert (report.num_files, report.num_new, report.num_kept) == (5, 5, 0)


def test_listing_that_cannot_be_read_is_no_miss(documents, cache, tmp_path, monkeypatch):
    push(documents, "mine", cache, COMPONENTS)
    error = StoreUnavailable(what="listing", where="the store", reason="access was denied")
    monkeypatch.setattr(documents.places.tiers[0].backend, "open", Mock(side_effect=error))
    with pytest.raises(StoreUnavailable, match="access was denied"):
        pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)


@pytest.mark.parametrize("size_bytes", [0, 5])
def test_file_that_was_cut_short_is_not_there(documents, cache, tmp_path, size_bytes):
    push(documents, "mine", cache, COMPONENTS)
    pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    os.truncate(tmp_path / "elsewhere" / "graph.py", size_bytes)
    assert pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS).num_new == 1
    assert contents(tmp_path / "elsewhere") == kept(cache)


def test_link_among_the_directories_leads_no_copy_away(documents, cache, tmp_path):
    push(documents, "mine", cache, COMPONENTS)
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    (tmp_path / "away").mkdir(mode=0o700)
    (target / "ab").symlink_to(tmp_path / "away")
    with pytest.raises(Conflict, match="expected ab to be a directory, or absent, found a link"):
        pull(documents, "mine", target, COMPONENTS)
    assert contents(tmp_path / "away") == {}


def test_damaged_blob_is_corrupt_nothing_is_laid_out_and_a_push_repairs_it(documents, cache, root, tmp_path):
    push(documents, "mine", cache, COMPONENTS)
    data = b"{}"  # of one file only: two that are read at once may find it damaged, and gone
    overwrite(blob_path(root, data), b"X" * len(data))
    with pytest.raises(Corrupt, match="sha256"):
        pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    assert contents(tmp_path / "elsewhere") == {}
    push(documents, "mine", cache, COMPONENTS)
    pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    assert contents(tmp_path / "elsewhere") == kept(cache)


def test_unknown_tool_that_names_its_path_is_pulled_at_the_same_path_only(documents, cache, tmp_path):
    (cache / "graph.py").write_bytes(f"open({str(cache)!r})".encode())
    push(documents, "mine", cache, COMPONENTS)
    with pytest.raises(Conflict, match=r"graph\.py contain the old path.*bind mount"):
        pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    before = kept(cache)
    cache.rename(tmp_path / "gone")
    pull(documents, "mine", cache, COMPONENTS)
    assert contents(cache) == before


def test_require_refuses_to_push_without_a_key_and_to_pull_what_is_unsigned(root, cache, tmp_path):
    backend = alone(DirectoryBackend(root))
    require = Documents(places=backend, trust=Trust(policy="require"))
    with pytest.raises(Untrusted, match="signing key"):
        push(require, "mine", cache, COMPONENTS)
    assert stored(root, "cas") == []
    push(Documents(places=backend, trust=Trust(policy="off")), "mine", cache, COMPONENTS)
    with pytest.raises(NotInStore, match="carries no signature"):
        pull(require, "mine", tmp_path / "elsewhere", COMPONENTS)


def test_empty_directory_does_not_hide_what_was_pushed(documents, cache, tmp_path):
    push(documents, "mine", cache, COMPONENTS)
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(UnusableCache, match="expected files to push"):
        push(documents, "mine", tmp_path / "empty", COMPONENTS)
    assert pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS).num_files > 0


@pytest.mark.parametrize("tool", ["torchair", "inductor", "mine"])
@pytest.mark.parametrize("has_files", [False, True])
def test_pulled_files_that_nobody_signed_mark_their_directory(documents, cache, tmp_path, tool, has_files):
    push(documents, tool, cache, COMPONENTS)
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    if has_files:
        (target / "own").write_bytes(b"own")
    pull(documents, tool, target, COMPONENTS)
    with pytest.raises(UnusableCache, match="signed"):
        admit(target, "require", ())


@pytest.mark.parametrize("pushed", [".", "deep", "deep/in", "deep/in/ab"])
@pytest.mark.parametrize("is_revoked", [True, False])
def test_copies_are_not_signed_anew_with_a_directory_above_or_below(
    root, cache, tmp_path, pushed, is_revoked
):
    backend, first, second = (
        alone(DirectoryBackend(root)),
        generate_key_pair("first"),
        generate_key_pair("second"),
    )
    trust = Trust(policy="require" if is_revoked else "off", signer=first)
    push(Documents(places=backend, trust=trust), "mine", cache, COMPONENTS)
    (tmp_path / "par" / "deep").mkdir(parents=True, mode=0o700)
    pull(Documents(places=backend, trust=trust), "mine", tmp_path / "par" / "deep" / "in", COMPONENTS)
    revoked = {key_id(first.public_key): Revocation(key_id=key_id(first.public_key))} if is_revoked else {}
    later = Trust(policy="require", signer=second, revoked=revoked)
    for use in (push, pull):
        with pytest.raises(RefusedCache):
            use(Documents(places=backend, trust=later), "mine", tmp_path / "par" / pushed, COMPONENTS)
    with pytest.raises(RefusedCache):
        admit(tmp_path / "par" / pushed, "require", set(revoked))


def test_pull_takes_the_last_push_also_of_a_node_whose_clock_is_slow(documents, cache, tmp_path, monkeypatch):
    push(documents, "mine", cache, COMPONENTS)
    (cache / "graph.py").write_bytes(b"newer")
    monkeypatch.setattr(pushing, "utc_now", lambda: "2020-01-31T12:00:00.000000+00:00")
    push(documents, "mine", cache, COMPONENTS)
    report = pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    assert (tmp_path / "elsewhere" / "graph.py").read_bytes() == b"newer"
    assert report.problems == ()


def test_damaged_listing_is_skipped_for_an_older_one(documents, cache, root, tmp_path):
    push(documents, "mine", cache, COMPONENTS)
    (first,) = stored(root, DIRECTORIES)
    (cache / "graph.py").write_bytes(b"newer")
    push(documents, "mine", cache, COMPONENTS)
    (second,) = set(stored(root, DIRECTORIES)) - {first}
    overwrite(second, second.read_bytes()[:-1] + b"?")
    report = pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    assert (tmp_path / "elsewhere" / "graph.py").read_bytes() == b"def call(): ...\n"
    assert len(report.problems) == 1


def test_killed_pull_leaves_nothing_that_the_tool_would_see(documents, cache, tmp_path, monkeypatch):
    push(documents, "mine", cache, COMPONENTS)

    def die(source: str | Path, target: str | Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", die)
    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        pull(documents, "mine", tmp_path / "elsewhere", COMPONENTS)
    assert contents(tmp_path / "elsewhere") == {}


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
