"""Files that engines' tools keep on a node: kept, placed, collected."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.node_artifacts import PACKAGE, destinations, kept, package_bytes, write
from tests.support.stored import rank_entry, rank_manifest
from warmrank.cache_store.cache_dir import node_files
from warmrank.cache_store.cache_dir.marks import Marks
from warmrank.cache_store.cache_dir.node_files import (
    NodeCache,
    NodeFile,
    find_kept,
    keep,
    place_files,
    refusal,
)
from warmrank.cache_store.digests import copy_and_digest, digest_bytes
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.records.manifest import ArtifactEntry, parse_manifest
from warmrank.worker.node_caches import GRAPHS, PACKAGES, pack, place_faults, unpack
from warmrank.worker.node_collecting import Collected, collect, entries, listing
from warmrank.worker.rank.manifests import with_node_files

REQUIRE, OFF = Marks(policy="require", signers=("ab" * 8,)), Marks(policy="off")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def file(cache: Path, tmp_path: Path) -> NodeFile:
    return kept(cache, tmp_path / "tools", "operators/kernel_cache/Ascend910/add.o", b"kernel")


@pytest.fixture
def placed_at(node: Path) -> Path:
    return node / "atc_data/kernel_cache/Ascend910/add.o"


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


ARTIFACT, OTHER = "0f" * 16, "2d" * 16
MANIFEST = rank_manifest(
    artifacts=tuple(
        rank_entry(path=f"Llama_0f/world1global_rank0/{name}/compiled_module", sha256=artifact * 2)
        for name, artifact in (("decode", ARTIFACT), ("prefill", OTHER))
    )
)


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return tmp_path / "tool"


def cache_of(tool: Path) -> tuple[NodeCache, ...]:
    return (NodeCache(name="operators", directory=str(tool)),)


def relatives(found: Collected) -> list[str]:
    return [file.relative for file in found.files]


def test_only_what_is_new_or_changed_is_collected(cache: Path, tool: Path):
    write(tool / "kernel_cache/old.o", b"old")
    write(tool / "kernel_cache/changed.o", b"before")
    before = listing(cache_of(tool))
    write(tool / "kernel_cache/changed.o", b"behind")
    write(tool / "kernel_cache/new.o", b"new")
    found = collect(cache_of(tool), cache, MANIFEST, before=before)
    assert relatives(found) == ["kernel_cache/changed.o", "kernel_cache/new.o"]
    assert (found.num_new, found.bytes_new, found.left_out) == (2, 9, ())
    assert all(find_kept(cache, file.digest) for file in found.files)


def test_links_and_files_that_others_can_write_are_left_out_with_a_reason(cache: Path, tool: Path):
    write(tool / "shared.o", b"x").chmod(0o666)
    (tool / "link.o").symlink_to(tool / "shared.o")
    found = collect(cache_of(tool), cache, MANIFEST)
    assert found.files == ()
    assert [
        str(tool / name) in reason
        for name, reason in zip(("link.o", "shared.o"), found.left_out, strict=True)
    ] == [True, True]


def test_what_another_launch_put_there_meanwhile_is_not_signed(cache: Path, tool: Path, tmp_path: Path):
    evil = kept(tmp_path / "other", tmp_path / "fetched", "operators/evil.o", b"unsigned")
    write(tool / "own.o", b"own")
    place_files(tmp_path / "other", [evil], {"operators": cache_of(tool)[0]}, OFF)
    found = collect(cache_of(tool), cache, MANIFEST, refusal=lambda path: refusal(path, "require", ()))
    assert found.files == ()
    assert "nobody" in found.left_out[0] or "signed" in found.left_out[0]


def engines(tool: Path) -> tuple[NodeCache, ...]:
    return (NodeCache(name="ge", directory=str(tool), patterns=("*.tar",), collect="all"),)


def handed_over(tmp_path: Path, tool: Path, data: bytes, artifact: str = ARTIFACT) -> None:
    made = tmp_path / f"made{data.hex()}"
    write(made / "g.om", data)
    pack(made, tool / artifact / "c.tar", GRAPHS)


def test_engines_files_of_this_manifests_artifacts_are_collected_whoever_made_them(cache, tool, tmp_path):
    handed_over(tmp_path, tool, b"by a script")
    handed_over(tmp_path, tool, b"of another workload", "1e" * 16)
    found = collect(engines(tool), cache, MANIFEST, before=listing(engines(tool)))
    assert relatives(found) == [f"{ARTIFACT}/c.tar"]


def test_carried_archives_are_those_of_this_manifests_artifacts_that_the_node_did_not_make_anew(
    cache, tool, tmp_path
):
    files = [
        kept(cache, tmp_path / "fetched", f"ge/{artifact}/c.tar", artifact.encode())
        for artifact in (ARTIFACT, OTHER, "3c" * 16)
    ]
    handed_over(tmp_path, tool, b"anew")
    found = collect(engines(tool), cache, MANIFEST, carried=files)
    assert relatives(found) == [f"{ARTIFACT}/c.tar", f"{OTHER}/c.tar"]
    assert (found.files[0] != files[0], found.files[1], found.num_new) == (True, files[1], 1)


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("relative", "not absolute"),
        ("~nobody_here/x", "not absolute"),
        ("$NOBODY_SET_THIS/x", "not absolute"),
        ("/", "root of the file system"),
        ("/data/cache", "overlaps with the cache directory"),
        ("/data", "overlaps with the cache directory"),
        ("/data/cache/node", "overlaps with the cache directory"),
        ("/data/cache/node_caches", "overlaps with the cache directory"),
        ("/data/cache/node_caches/../M", "overlaps with the cache directory"),
        ("/data/cache/node_caches/ge/x", "overlaps with that of node cache 'ge'"),
    ],
)
def test_place_that_is_not_a_tools_alone_is_refused(directory: str, expected: str):
    caches = [NodeCache(name="mine", directory=directory)]
    assert expected in place_faults(caches, Path("/data/cache"))["mine"]


OLD = f"static_kernel_compile_outputs/ts20250101000000_pid1_outputs/{PACKAGE}"
NEW = f"static_kernel_compile_outputs/ts20260101000000_pid1_outputs/{PACKAGE}"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "node_caches/ge/artifact/formats.tar"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir(mode=0o700)
    return tmp_path / "private"


def files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_newest_packages_come_back_where_torchair_looks_and_can_be_run(tmp_path, archive, private):
    write(tmp_path / "made" / OLD, b"old")
    write(tmp_path / "made" / NEW, package_bytes())
    pack(tmp_path / "made", archive, PACKAGES)
    unpack(archive, private)
    assert files(private) == {NEW}
    assert (private / NEW).read_bytes() == package_bytes()
    assert stat.S_IMODE((private / NEW).stat().st_mode) == 0o700
    assert stat.S_IMODE((private / NEW).parent.stat().st_mode) == 0o700


def test_name_that_leads_out_of_the_private_directory_is_refused(archive, private, caplog):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as made:
        made.addfile(tarfile.TarInfo("../evil.om"))
    write(archive, hashlib.sha256(data.getvalue()).hexdigest().encode() + b"\n" + data.getvalue())
    unpack(archive, private)
    assert not (private.parent / "evil.om").exists()
    assert "no file below a directory" in caplog.text


def test_damaged_archive_is_not_unpacked(tmp_path, archive, private, caplog):
    write(tmp_path / "made" / NEW, package_bytes())
    pack(tmp_path / "made", archive, PACKAGES)
    data = bytearray(archive.read_bytes())
    data[-1] ^= 1
    write(archive, bytes(data))
    unpack(archive, private)
    assert files(private) == set()
    assert "not those that its first line says" in caplog.text


FILE = NodeFile(cache="operators", relative="kernel_cache/Ascend910/add.o", digest=digest_bytes(b"kernel"))


def test_manifest_with_node_artifacts_is_of_format_2_and_round_trips():
    value = with_node_files(rank_manifest(), [FILE])
    document = json.loads(value.to_bytes())
    assert (document["format"], document["artifacts"][1]["scope"]) == (2, "node")
    found = parse_manifest(value.to_bytes(), "here")
    assert (found, found.node_files()) == (value, (FILE,))


@pytest.mark.parametrize(
    "path",
    [
        "node/operators/../escape",
        "node/operators//x",
        "/node/operators/x",
        "node/operators",
        "node/other/x",
        "node/Operators/x",
        "elsewhere/operators/x",
        "node/operators/a\\b",
        "node/operators/new\nline",
        "node/operators/" + "x" * 256,
        "Llama_0f/world1global_rank0/decode/compiled_module",
    ],
)
def test_node_entry_with_another_path_is_refused(path: str):
    (entry,) = entries([FILE])
    with pytest.raises(ValidationError, match="path"):
        ArtifactEntry(**dict(entry) | {"path": path})
