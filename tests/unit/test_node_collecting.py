"""What a launch adds to node caches, and what is left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_artifacts import kept, write
from warmrank.cache_store.cache_dir.node_files import NodeFile, find_kept, keep, kept_files, kept_path
from warmrank.cache_store.cache_dir.placing import Destination, Vouched, place_files, refusal
from warmrank.worker import node_collecting
from warmrank.worker.node_caches import GRAPHS, NodeCache, pack
from warmrank.worker.node_collecting import Collected, Room, collect, listing

ARTIFACT = "0f" * 16
ROOM = Room(artifacts=frozenset({ARTIFACT}))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return tmp_path / "tool"


def cache_of(tool: Path, **changes: Any) -> tuple[NodeCache, ...]:
    return (NodeCache(name="operators", directory=str(tool), **changes),)


def collected(tool: Path, cache: Path, room: Room = ROOM, **changes: Any) -> Collected:
    return collect(cache_of(tool, **changes), cache, room)


def relatives(found: Collected) -> list[str]:
    return [file.relative for file in found.files]


def test_only_what_is_new_or_changed_is_collected(cache: Path, tool: Path):
    write(tool / "kernel_cache/old.o", b"old")
    write(tool / "kernel_cache/changed.o", b"before")
    before = listing(cache_of(tool))
    write(tool / "kernel_cache/changed.o", b"behind")
    write(tool / "kernel_cache/new.o", b"new")
    found = collect(cache_of(tool), cache, ROOM, before=before)
    assert relatives(found) == ["kernel_cache/changed.o", "kernel_cache/new.o"]
    assert (found.num_new, found.bytes_new, found.left_out) == (2, 9, ())
    assert all(find_kept(cache, file.digest) for file in found.files)


def test_files_that_no_pattern_takes_are_nobodys_business(cache: Path, tool: Path):
    write(tool / "kernel_cache/a.o", b"a")
    write(tool / "notes.txt", b"private")
    (tool / "link").symlink_to("/etc/hostname")
    found = collected(tool, cache, patterns=("kernel_cache/*",))
    assert (relatives(found), found.left_out) == (["kernel_cache/a.o"], ())


@pytest.mark.parametrize(
    "name", ["a.lock", "x.tmp", ".warmrank-here-1", ".unverified", "locks/a", ".hidden", ".git/config"]
)
def test_locks_and_hidden_files_are_not_collected(name: str, cache: Path, tool: Path):
    write(tool / name, b"x")
    assert collected(tool, cache) == Collected()


def test_links_and_files_that_others_can_write_are_left_out_with_a_reason(cache: Path, tool: Path):
    write(tool / "shared.o", b"x").chmod(0o666)
    (tool / "link.o").symlink_to(tool / "shared.o")
    found = collected(tool, cache)
    assert found.files == ()
    assert [
        str(tool / name) in reason
        for name, reason in zip(("link.o", "shared.o"), found.left_out, strict=True)
    ] == [True, True]


def test_file_that_is_being_written_is_left_out(cache: Path, tool: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tool / "a.o", b"half")
    write(tool / "b.o", b"whole")

    def keep_while_written(root: Path, source: Path, **options: Any) -> Any:
        if source == path:
            path.write_bytes(b"half and half")
        return keep(root, source, **options)

    monkeypatch.setattr(node_collecting, "keep", keep_while_written)
    found = collected(tool, cache)
    assert relatives(found) == ["b.o"]
    assert "nobody writes while it is read" in found.left_out[0]


def test_names_that_no_manifest_takes_are_left_out_uncopied(cache: Path, tool: Path):
    write(tool / "new\nline.o", b"1")
    write(tool / "Add.o", b"2")
    write(tool / "add.o", b"3")
    no_text = os.fsencode(tool) + b"/\xff.o"
    Path(os.fsdecode(no_text)).write_bytes(b"4")
    found = collected(tool, cache)
    assert relatives(found) == ["Add.o"]
    assert len(found.left_out) == 3
    assert "\n".join(found.left_out).encode("utf-8")
    assert len(kept_files(cache)) == 1


@pytest.mark.parametrize(
    "limit", [{"num_files": 2}, {"size_bytes": 4}, {"document_bytes": 1200}, {"file_bytes": 1}]
)
def test_what_there_is_no_room_for_is_left_out_uncopied(limit: dict[str, Any], cache: Path, tool: Path):
    for name in "abc":
        write(tool / name, name.encode() * 2)
    found = collected(tool, cache, Room(**limit))
    assert relatives(found) == (["a", "b"] if limit != {"file_bytes": 1} else [])
    assert len(kept_files(cache)) == len(found.files)
    assert len(found.left_out) == 3 - len(found.files)
    assert found.num_new == len(found.files)


# What came from the store.


def fetched(cache: Path, tmp_path: Path, relative: str, data: bytes) -> NodeFile:
    return kept(cache, tmp_path / "fetched", f"operators/{relative}", data)


def test_what_came_from_the_store_stays_in_the_manifest(cache: Path, tool: Path, tmp_path: Path):
    carried = fetched(cache, tmp_path, "fetched.o", b"fetched")
    write(tool / "new.o", b"new")
    found = collect(cache_of(tool), cache, ROOM, carried=[carried])
    assert relatives(found) == ["new.o", "fetched.o"]
    assert found.num_new == 1


def test_kept_copy_that_vanished_drops_its_entry_only(cache: Path, tool: Path, tmp_path: Path):
    files = [fetched(cache, tmp_path, name, name.encode()) for name in ("a.o", "b.o")]
    kept_path(cache, files[0].digest.sha256).unlink()
    found = collect(cache_of(tool), cache, ROOM, carried=files)
    assert relatives(found) == ["b.o"]
    assert "kept copy is gone" in found.left_out[0]


# Trust.


def test_what_another_launch_put_there_meanwhile_is_not_signed(cache: Path, tool: Path, tmp_path: Path):
    evil = fetched(tmp_path / "other", tmp_path, "evil.o", b"unsigned")
    write(tool / "own.o", b"own")
    place_files(tmp_path / "other", [evil], {"operators": Destination(path=tool)}, Vouched(policy="off"))
    found = collect(cache_of(tool), cache, ROOM, refusal=lambda directory: refusal(directory, "require", ()))
    assert found.files == ()
    assert "nobody" in found.left_out[0] or "signed" in found.left_out[0]


# An engine's files.


def engines(tool: Path) -> tuple[NodeCache, ...]:
    return (NodeCache(name="ge", directory=str(tool), collect="all", in_sets=True),)


def handed_over(tmp_path: Path, tool: Path, data: bytes, artifact: str = ARTIFACT) -> str:
    """The archive's name."""
    made = tmp_path / f"made{data.hex()}"
    write(made / "g.om", data)
    pack(made, tool / artifact / "c", GRAPHS)
    (archive,) = (tool / artifact / "c").iterdir()
    return archive.name


def names(found: Collected) -> list[str]:
    return [Path(file.relative).name for file in found.files]


def test_engines_files_of_this_manifests_artifacts_are_collected_whoever_made_them(cache, tool, tmp_path):
    name = handed_over(tmp_path, tool, b"by a script")
    handed_over(tmp_path, tool, b"of another workload", "1e" * 16)
    found = collect(engines(tool), cache, ROOM, before=listing(engines(tool)))
    assert [file.relative for file in found.files] == [f"{ARTIFACT}/c/{name}"]


def test_torn_archive_is_left_out(cache: Path, tool: Path, tmp_path: Path):
    name = handed_over(tmp_path, tool, b"graph")
    next(tool.rglob(name)).write_bytes(b"torn")
    found = collect(engines(tool), cache, ROOM)
    assert found.files == ()
    assert "not those that its name says" in found.left_out[0]


def test_carried_archives_are_those_of_this_manifests_artifacts_that_the_node_did_not_make_anew(
    cache, tool, tmp_path
):
    def carried(artifact: str) -> NodeFile:
        return kept(cache, tmp_path / "fetched", f"ge/{artifact}/c/fetched.tar", artifact.encode())

    other = "2d" * 16
    name = handed_over(tmp_path, tool, b"anew")
    room = Room(artifacts=frozenset({ARTIFACT, other}))
    files = [carried(artifact) for artifact in (ARTIFACT, other, "3c" * 16)]
    found = collect(engines(tool), cache, room, carried=files)
    assert names(found) == [name, "fetched.tar"]
    assert found.num_new == 1
