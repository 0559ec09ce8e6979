"""Node caches: where they may lie, and what an engine keeps in them."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from tests.support.node_artifacts import PACKAGE, package_bytes, write
from warmrank.cache_store.digests import digest_bytes
from warmrank.worker.node_caches import (
    GRAPHS,
    PACKAGES,
    NodeCache,
    archive_name,
    engine_directory,
    pack,
    place_faults,
    unpack,
)

CACHE = Path("/data/cache")
OWN = {name: engine_directory(CACHE, name) for name in ("static_kernels", "ge")}


# Where they may lie.


def faults(**directories: str) -> dict[str, str]:
    caches = [NodeCache(name=name, directory=directory) for name, directory in directories.items()]
    return place_faults(caches, CACHE, OWN)


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
    assert expected in faults(mine=directory)["mine"]


def test_link_into_the_cache_directory_is_seen_through(tmp_path: Path):
    (tmp_path / "cache/M").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "cache/M")
    cache = NodeCache(name="mine", directory=str(tmp_path / "link"))
    own_places = {"ge": engine_directory(tmp_path / "cache", "ge")}
    assert "overlaps" in place_faults([cache], tmp_path / "cache", own_places)["mine"]


OLD = f"static_kernel_compile_outputs/ts20250101000000_pid1_outputs/{PACKAGE}"
NEW = f"static_kernel_compile_outputs/ts20260101000000_pid1_outputs/{PACKAGE}"
GRAPH, INDEX = "graph_1_2026.om", "graph_1.idx"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "node_caches/ge/artifact/formats"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Where GE left a graph and its index."""
    for name in (GRAPH, INDEX):
        write(tmp_path / "made" / name, name.encode())
    return tmp_path / "made"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir(mode=0o700)
    return tmp_path / "private"


def files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_newest_packages_come_back_where_torchair_looks_and_can_be_run(tmp_path, kept, private):
    write(tmp_path / "made" / OLD, b"old")
    write(tmp_path / "made" / NEW, package_bytes())
    pack(tmp_path / "made", kept, PACKAGES)
    unpack(kept, private)
    assert files(private) == {NEW}
    assert (private / NEW).read_bytes() == package_bytes()
    assert stat.S_IMODE((private / NEW).stat().st_mode) == 0o700
    assert stat.S_IMODE((private / NEW).parent.stat().st_mode) == 0o700


def test_graphs_are_replaced_together_with_their_index(kept: Path, made: Path, private: Path):
    pack(made, kept, GRAPHS)
    (made / GRAPH).unlink()
    write(made / "graph_1_2027.om", b"later")
    write(made / INDEX, b"of the later one")
    pack(made, kept, GRAPHS)
    unpack(kept, private)
    assert files(private) == {INDEX, "graph_1_2027.om"}
    assert (private / INDEX).read_bytes() == b"of the later one"


def test_older_archive_that_is_whole_stands_in_for_a_torn_one(kept, made, private, caplog):
    pack(made, kept, GRAPHS)
    (good,) = kept.iterdir()
    write(kept / f"{'0' * 32}.tar", good.read_bytes()[:-1])
    os.utime(good, (1, 1))
    unpack(kept, private)
    assert (private / GRAPH).read_bytes() == GRAPH.encode()
    assert "not those that its name says" in caplog.text


def test_name_that_leads_out_of_the_private_directory_is_refused(kept, private, caplog):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../evil.om"))
    write(kept / archive_name(digest_bytes(data.getvalue())), data.getvalue())
    unpack(kept, private)
    assert not (private.parent / "evil.om").exists()
    assert "no file below a directory" in caplog.text


def test_nothing_is_kept_where_others_can_write_a_part_of_it(kept, made, caplog):
    (made / GRAPH).chmod(0o666)
    pack(made, kept, GRAPHS)
    assert "compiled again" in caplog.text
    assert list(kept.iterdir()) == []
