"""Node caches: the known ones, what a launch adds to them, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache_store.digests import digest_bytes
from cache_store.node.node_files import NodeFile, find_kept, keep
from tests.support.node_artifacts import write
from worker import node_caches
from worker.known_caches import known
from worker.node_caches import NodeCache, Source, collect, destinations, listing, merged, sources
from worker.settings import Settings, settings


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return tmp_path / "tool"


def cache_of(tool: Path, **changes: Any) -> tuple[NodeCache, ...]:
    return (NodeCache(name="operators", directory=str(tool), **changes),)


def here(**changes: Any) -> Settings:
    quiet: dict[str, Any] = {"ascend": {}, "op_compiler_cache": "", "triton_cache": ""}
    return replace(settings(), **(quiet | changes))


def relatives(files: tuple[NodeFile, ...]) -> list[str]:
    return [file.relative for file in files]


# The known ones.


def test_known_caches_lie_in_the_home_directory_and_below_the_cache_directory(cache: Path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/npu")
    found = {item.name: item.directory for item in known(here(), "npu", cache)}
    assert found == {
        "operators": "/home/npu/atc_data",
        "triton": "/home/npu/.triton/cache",
        "static_kernels": str(cache / "node_caches/static_kernels"),
        "ge": str(cache / "node_caches/ge"),
    }


def test_environment_moves_the_known_caches(cache: Path):
    moved = here(op_compiler_cache="/one", triton_cache="/two")
    found = {item.name: item.directory for item in known(moved, "npu", cache)}
    assert (found["operators"], found["triton"]) == ("/one", "/two")


def test_own_variable_of_the_operator_compiler_comes_before_the_common_one(cache: Path):
    common = here(ascend={"ASCEND_CACHE_PATH": "/common"})
    both = here(ascend={"ASCEND_CACHE_PATH": "/common"}, op_compiler_cache="/own")
    assert [known(found, "npu", cache)[0].directory for found in (common, both)] == ["/common", "/own"]


def test_triton_home_is_read(monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", "/data")
    assert settings().triton_cache == "/data/.triton/cache"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_other_device_kinds_have_no_known_caches(kind: str, cache: Path):
    assert known(here(), kind, cache) == ()


def test_config_replaces_adds_and_leaves_out(cache: Path):
    declared = {
        "triton": None,
        "operators": NodeCache(name="", directory="/mine"),
        "own": NodeCache(name="", directory="/own"),
    }
    found = {item.name: item.directory for item in merged(known(here(), "npu", cache), declared)}
    assert "triton" not in found
    assert (found["operators"], found["own"]) == ("/mine", "/own")


def test_what_is_not_collected_is_still_a_destination(tool: Path):
    caches = cache_of(tool, collect="none")
    assert (sources(caches), list(destinations(caches))) == ((), ["operators"])


# Collecting.


def test_only_what_is_new_or_changed_is_collected(cache: Path, tool: Path):
    write(tool / "kernel_cache/old.o", b"old")
    write(tool / "kernel_cache/changed.o", b"before")
    before = listing(cache_of(tool))
    write(tool / "kernel_cache/changed.o", b"behind")
    write(tool / "kernel_cache/new.o", b"new")
    found = collect(sources(cache_of(tool)), cache, before=before)
    assert relatives(found.files) == ["kernel_cache/changed.o", "kernel_cache/new.o"]
    assert (found.num_new, found.bytes_new, found.left_out) == (2, 9, ())
    assert all(find_kept(cache, file.digest) for file in found.files)


def test_everything_is_collected_where_the_config_asks_for_all(cache: Path, tool: Path):
    write(tool / "old.o", b"old")
    caches = cache_of(tool, collect="all")
    assert relatives(collect(sources(caches), cache, before=listing(caches)).files) == ["old.o"]


def test_directory_that_is_not_there_holds_nothing(cache: Path, tool: Path):
    found = collect(sources(cache_of(tool)), cache, before=listing(cache_of(tool)))
    assert (found.files, found.left_out) == ((), ())


def test_files_that_no_pattern_takes_are_nobodys_business(cache: Path, tool: Path):
    write(tool / "kernel_cache/a.o", b"a")
    write(tool / "notes.txt", b"private")
    (tool / "link").symlink_to("/etc/hostname")
    found = collect(sources(cache_of(tool, patterns=("kernel_cache/*",))), cache)
    assert (relatives(found.files), found.left_out) == (["kernel_cache/a.o"], ())


@pytest.mark.parametrize("name", ["a.lock", "x.tmp", ".warmrank-here-1", ".unverified", "locks/a"])
def test_locks_and_files_on_their_way_in_are_not_collected(name: str, cache: Path, tool: Path):
    write(tool / name, b"x")
    assert collect(sources(cache_of(tool)), cache).files == ()


def test_links_and_files_that_others_can_write_are_left_out_with_a_reason(cache: Path, tool: Path):
    write(tool / "shared.o", b"x").chmod(0o666)
    (tool / "link.o").symlink_to(tool / "shared.o")
    found = collect(sources(cache_of(tool)), cache)
    assert found.files == ()
    assert [
        str(tool / name) in reason
        for name, reason in zip(("link.o", "shared.o"), found.left_out, strict=True)
    ] == [True, True]


def test_directory_that_others_can_write_is_left_out_whole(cache: Path, tool: Path):
    write(tool / "open/a.o", b"x")
    write(tool / "b.o", b"x")
    (tool / "open").chmod(0o777)
    found = collect(sources(cache_of(tool)), cache)
    assert (relatives(found.files), len(found.left_out)) == (["b.o"], 1)


def test_file_that_is_being_written_is_left_out(cache: Path, tool: Path, monkeypatch):
    path = write(tool / "a.o", b"half")
    write(tool / "b.o", b"whole")
    real = keep

    def keep_while_written(root: Path, source: Path, **options: Any) -> Any:
        if source == path:
            path.write_bytes(b"half and half")
        return real(root, source, **options)

    monkeypatch.setattr(node_caches, "keep", keep_while_written)
    found = collect(sources(cache_of(tool)), cache)
    assert relatives(found.files) == ["b.o"]
    assert "nobody writes while it is read" in found.left_out[0]


def test_what_came_from_the_store_stays_in_the_manifest(cache: Path, tool: Path):
    carried = NodeFile(cache="operators", relative="fetched.o", digest=digest_bytes(b"fetched"))
    write(tool / "new.o", b"new")
    found = collect(sources(cache_of(tool)), cache, carried=[carried])
    assert relatives(found.files) == ["new.o", "fetched.o"]
    assert found.num_new == 1


def test_fetched_file_that_changed_since_counts_with_its_new_bytes(cache: Path, tool: Path):
    carried = NodeFile(cache="operators", relative="a.o", digest=digest_bytes(b"fetched"))
    write(tool / "a.o", b"again")
    found = collect(sources(cache_of(tool)), cache, carried=[carried])
    assert [file.digest for file in found.files] == [digest_bytes(b"again")]


def test_fetched_file_that_is_unchanged_is_not_new(cache: Path, tool: Path):
    carried = NodeFile(cache="operators", relative="a.o", digest=digest_bytes(b"fetched"))
    write(tool / "a.o", b"fetched")
    found = collect(sources(cache_of(tool)), cache, carried=[carried])
    assert (found.files, found.num_new) == ((carried,), 0)


def test_directories_that_an_engine_names_fill_one_cache_under_prefixes(cache: Path, tmp_path: Path):
    for function in ("prefill", "decode"):
        write(tmp_path / function / "outputs/k.run", function.encode())
    places = [
        Source(name="static_kernels", directory=tmp_path / name, patterns=("*.run",), prefix=f"M/{name}")
        for name in ("prefill", "decode")
    ]
    found = collect(places, cache)
    assert [file.path for file in found.files] == [
        "node/static_kernels/M/prefill/outputs/k.run",
        "node/static_kernels/M/decode/outputs/k.run",
    ]


def test_names_that_no_manifest_takes_are_left_out(cache: Path, tool: Path):
    write(tool / "new\nline.o", b"x")
    write(tool / "Add.o", b"x")
    write(tool / "add.o", b"x")
    found = collect(sources(cache_of(tool)), cache)
    assert relatives(found.files) == ["Add.o"]
    assert len(found.left_out) == 2


def test_number_and_size_of_node_artifacts_are_bounded(cache: Path, tool: Path, monkeypatch):
    monkeypatch.setattr(node_caches, "MAX_FILES", 2)
    for name in "abc":
        write(tool / name, b"12")
    found = collect(sources(cache_of(tool)), cache)
    assert (relatives(found.files), found.num_new, len(found.left_out)) == (["a", "b"], 2, 1)
    monkeypatch.setattr(node_caches, "MAX_BYTES", 3)
    assert relatives(collect(sources(cache_of(tool)), cache).files) == ["a"]
