"""The cache directory, on made-up facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.launched import loaded_config
from warmrank.orchestrator.doctor.disk import Disk, NodeCacheDirectory, check, check_node_caches
from warmrank.orchestrator.doctor.findings import Finding
from warmrank.orchestrator.doctor.look_disk import look_at_node_caches

FINE = Disk(
    path="/var/cache/warmrank",
    exists=True,
    looked_at="/var/cache/warmrank",
    problem="",
    uid=1000,
    own_uid=1000,
    mode=0o700,
    file_system="xfs",
    noexec=False,
    free_bytes=2**40,
    free_inodes=10**6,
    needed_bytes=2**30,
    scratch_problem="",
    keeps_modes=True,
    reflinks=True,
)
ABSENT = replace(FINE, exists=False, looked_at="/var", uid=0, mode=0o755, keeps_modes=None, reflinks=None)


def troubles(facts: Disk) -> dict[str, Finding]:
    return {finding.check: finding for finding in check(facts) if finding.level != "ok"}


def test_private_directory_on_a_local_disk_is_fine():
    assert troubles(FINE) == {}


def test_directory_that_can_be_made_is_fine():
    assert {name: finding.level for name, finding in troubles(ABSENT).items()} == {
        "disk.private_files": "note"
    }


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"problem": "read-only file system"}, "disk.cache_dir", "error"),
        ({"uid": 0}, "disk.cache_dir", "error"),
        ({"mode": 0o777}, "disk.cache_dir", "error"),
        ({"file_system": "nfs4"}, "disk.file_system", "warning"),
        ({"file_system": ""}, "disk.file_system", "warning"),
        ({"free_bytes": 3 * 2**29}, "disk.free", "warning"),
        ({"free_bytes": 2**20}, "disk.free", "error"),
        ({"free_bytes": 0, "needed_bytes": 0}, "disk.free", "error"),
        ({"free_inodes": 100}, "disk.inodes", "warning"),
        ({"free_inodes": 0}, "disk.inodes", "error"),
        ({"noexec": True}, "disk.execution", "warning"),
        ({"scratch_problem": "no space left"}, "disk.private_files", "error"),
        ({"keeps_modes": False}, "disk.private_files", "error"),
    ],
)
def test_each_trouble_is_named(change: dict[str, object], name: str, level: str):
    found = troubles(replace(FINE, **change))  # type: ignore[arg-type]
    assert {check: finding.level for check, finding in found.items()} == {name: level}
    assert found[name].remedy


def test_room_is_measured_by_what_the_newest_launch_took():
    facts = replace(FINE, free_bytes=10 * 2**30)
    assert troubles(facts) == {}
    assert "twice the 8.0 GiB" in troubles(replace(facts, needed_bytes=8 * 2**30))["disk.free"].expected


def test_file_system_without_a_limit_of_files_is_fine():
    assert troubles(replace(FINE, free_inodes=-1)) == {}


def test_missing_reflinks_are_no_trouble():
    assert troubles(replace(FINE, reflinks=False)) == {}


def test_node_caches_that_can_be_written_are_fine():
    assert list(check_node_caches([])) == []
    (found,) = check_node_caches([NodeCacheDirectory(name="triton", path="/root/.triton", problem="")])
    assert (found.check, found.level) == ("disk.node_caches", "ok")


def test_node_cache_that_cannot_be_written_is_named():
    good = NodeCacheDirectory(name="triton", path="/root/.triton", problem="")
    bad = NodeCacheDirectory(name="operators", path="/opt/cache", problem="this user may not write /opt")
    (found,) = check_node_caches([good, bad])
    assert (found.level, found.actual) == ("warning", "this user may not write /opt")
    assert "node_caches.operators.path" in found.remedy


def test_node_caches_of_a_config_are_looked_at(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    config = loaded_config(
        tmp_path,
        node_caches={
            "mine": {"path": str(tmp_path / "new")},
            "theirs": {"path": str(tmp_path / "file" / "x")},
        },
    )
    found = look_at_node_caches(config)
    assert [(item.name, item.problem) for item in found] == [
        ("mine", ""),
        ("theirs", f"{tmp_path / 'file'} is no directory"),
    ]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("place", "problem"),
    [("{root}/open/tools", "has mode 0777"), ("{root}/cache", "overlaps with the cache")],
)
def test_place_that_nothing_is_put_into_is_named(place: str, problem: str, tmp_path: Path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    config = loaded_config(tmp_path, cache_dir=str(tmp_path / "cache"), node_caches={"tools": {"path": "/x"}})
    cache = config.node_caches["tools"]
    assert cache is not None
    moved = cache.model_copy(update={"path": place.format(root=tmp_path)})
    (found,) = look_at_node_caches(config.model_copy(update={"node_caches": {"tools": moved}}))
    assert problem in found.problem
