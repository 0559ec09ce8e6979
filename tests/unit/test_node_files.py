"""Node artifacts on a node's disk: kept once, placed where tools look, and never over what is there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.node_artifacts import destinations, kept, write
from warmrank.cache_store.cache_dir import node_files
from warmrank.cache_store.cache_dir.marks import SIGNERS, UNVERIFIED
from warmrank.cache_store.cache_dir.node_files import (
    NodeFile,
    drop_unneeded,
    find_kept,
    keep,
    kept_files,
    kept_path,
    split_node_path,
)
from warmrank.cache_store.cache_dir.placing import Vouched, admitted, place_files
from warmrank.cache_store.digests import copy_and_digest, digest_bytes
from warmrank.cache_store.errors import UnusableCache

REQUIRE, OFF = Vouched(policy="require", signers=("ab" * 8,)), Vouched(policy="off")
PATH = "operators/kernel_cache/Ascend910/add.o"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def file(cache: Path, tmp_path: Path) -> NodeFile:
    return kept(cache, tmp_path / "tools", PATH, b"kernel")


@pytest.fixture
def placed_at(node: Path) -> Path:
    return node / "atc_data/kernel_cache/Ascend910/add.o"


# Keeping.


def test_file_that_holds_what_is_kept_is_read_and_not_copied(
    cache: Path, tmp_path: Path, file: NodeFile, monkeypatch
):
    monkeypatch.setattr(node_files, "temporary_kept", None)
    assert keep(cache, tmp_path / "tools" / PATH, expected=file.digest) == file.digest


def test_file_that_holds_something_else_than_expected_is_kept_as_it_is(
    cache: Path, tmp_path: Path, file: NodeFile
):
    digest = keep(cache, write(tmp_path / "tools" / PATH, b"rewritten"), expected=file.digest)
    assert digest == digest_bytes(b"rewritten")
    assert len(kept_files(cache)) == 2


def test_file_replaced_by_one_of_its_size_while_it_is_read_is_not_kept(
    cache: Path, tmp_path: Path, monkeypatch
):
    path = write(tmp_path / "tools/x", b"half")
    real = copy_and_digest

    def swap(source, target, *, limit_bytes):
        write(tmp_path / "tools/y", b"HALF").replace(path)
        return real(source, target, limit_bytes=limit_bytes)

    monkeypatch.setattr(node_files, "copy_and_digest", swap)
    with pytest.raises(UnusableCache, match="its times, size or inode changed"):
        keep(cache, path)


@pytest.mark.parametrize("path", ["node/ops/a", "node/ops/a/b.o"])
def test_path_of_a_node_artifact_is_taken_apart(path: str):
    assert split_node_path(path) == ("ops", path.removeprefix("node/ops/"))


def test_old_files_that_nobody_needs_go(cache: Path, tmp_path: Path):
    files = [kept(cache, tmp_path / "tools", f"mine/{name}", name.encode()) for name in ("a", "b", "c")]
    for file in files[:2]:
        os.utime(kept_path(cache, file.digest.sha256), (0, 0))
    drop_unneeded(cache, {files[0].digest.sha256})
    assert [find_kept(cache, file.digest) is not None for file in files] == [True, False, True]


# Placing.


def test_file_is_placed_once_private_and_on_its_own(cache: Path, node: Path, file: NodeFile, placed_at: Path):
    first = place_files(cache, [file], destinations(node), REQUIRE)
    again = place_files(cache, [file], destinations(node), REQUIRE)
    assert (first.new, first.there, again.new, again.there) == ((file,), (), (), (file,))
    assert placed_at.read_bytes() == b"kernel"
    status = placed_at.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 1)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (placed_at.parent, node / "atc_data")} == {0o700}
    assert list(placed_at.parent.iterdir()) == [placed_at]


def test_nothing_is_placed_through_a_link(cache: Path, node: Path, file: NodeFile, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (node / "atc_data").mkdir(parents=True, mode=0o700)
    (node / "atc_data/kernel_cache").symlink_to(elsewhere)
    found = place_files(cache, [file], destinations(node), REQUIRE)
    assert (found.new, list(elsewhere.iterdir()), len(found.skipped)) == ((), [], 1)


def test_nothing_is_placed_in_a_directory_that_others_can_write(cache: Path, node: Path, file: NodeFile):
    (node / "atc_data").mkdir(parents=True)
    (node / "atc_data").chmod(0o777)
    found = place_files(cache, [file], destinations(node), REQUIRE)
    assert "not writable by group or others" in found.skipped[0]
    assert list((node / "atc_data").iterdir()) == []


def test_file_that_the_tool_makes_at_the_same_time_stays(
    cache: Path, node: Path, file: NodeFile, placed_at: Path, monkeypatch
):
    real = os.link

    def race(source: Path, target: Path) -> None:
        write(placed_at, b"the tool's")
        real(source, target)

    monkeypatch.setattr(os, "link", race)
    found = place_files(cache, [file], destinations(node), REQUIRE)
    assert placed_at.read_bytes() == b"the tool's"
    assert (found.new, len(found.skipped)) == ((), 1)


@pytest.mark.parametrize("relative", [".unverified", "../x", "a.lock"])
def test_mark_or_lock_is_never_placed(relative: str, cache: Path, node: Path, file: NodeFile):
    found = place_files(
        cache, [NodeFile(cache="mine", relative=relative, digest=file.digest)], destinations(node), REQUIRE
    )
    assert (found.new, node.exists()) == ((), False)
    assert "no path of a node artifact" in found.skipped[0]


@pytest.fixture
def of_a_set(cache: Path, tmp_path: Path) -> NodeFile:
    return kept(cache, tmp_path / "tools", "ge/artifact/c/set/g.om", b"graph")


def test_damaged_file_of_an_engines_set_is_replaced(cache: Path, node: Path, of_a_set: NodeFile):
    torn = write(node / "ge/artifact/c/set/g.om", bytes(5))
    found = place_files(cache, [of_a_set], destinations(node), REQUIRE)
    assert (found.new, found.skipped, torn.read_bytes()) == ((of_a_set,), (), b"graph")


def test_nothing_is_placed_below_a_directory_that_others_can_rename_in(
    cache: Path, node: Path, file: NodeFile
):
    node.mkdir()
    node.chmod(0o777)
    found = place_files(cache, [file], destinations(node), REQUIRE)
    assert (found.new, list(node.iterdir())) == ((), [])
    assert f"{node} has mode 0777" in found.skipped[0]
    node.chmod(0o1777)  # as /tmp
    assert place_files(cache, [file], destinations(node), REQUIRE).new == (file,)


# Trust.


def test_directory_is_marked_before_what_nobody_need_have_signed(cache: Path, node: Path, file: NodeFile):
    place_files(cache, [file], destinations(node), OFF)
    assert (node / "atc_data" / UNVERIFIED).exists()
    assert set(admitted(destinations(node), "off", ())[0]) == set(destinations(node))
    usable, (reason,) = admitted(destinations(node), "require", ())
    assert set(destinations(node)) - set(usable) == {"operators"}
    assert "signed" in reason


def test_directory_remembers_who_vouched(cache: Path, node: Path, file: NodeFile):
    place_files(cache, [file], destinations(node), REQUIRE)
    assert [path.name for path in (node / "atc_data" / SIGNERS).iterdir()] == list(REQUIRE.signers)
    assert admitted(destinations(node), "require", ())[1] == ()
    (reason,) = admitted(destinations(node), "require", REQUIRE.signers)[1]
    assert "revoked" in reason
