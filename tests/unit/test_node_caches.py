"""Node caches: which are known, and where they may lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmrank.worker.node_caches import (
    NodeCache,
    engine_directory,
    operators,
    place_faults,
)
from warmrank.worker.settings import Settings, expanded, settings

CACHE = Path("/data/cache")
OWN = {name: engine_directory(CACHE, name) for name in ("static_kernels", "ge")}


def here(**changes: Any) -> Settings:
    quiet: dict[str, Any] = {"ascend": {}, "op_compiler_cache": ""}
    return replace(settings(), **(quiet | changes))


# The known ones.


def test_operators_lie_in_the_home_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/npu")
    assert operators(here()).directory == "/home/npu/atc_data"


def test_variable_of_the_operator_compiler_comes_before_the_common_one():
    common = here(ascend={"ASCEND_CACHE_PATH": "/common"})
    both = here(ascend={"ASCEND_CACHE_PATH": "/common"}, op_compiler_cache="/own")
    assert [operators(found).directory for found in (common, both)] == ["/common", "/own"]


def test_home_and_variables_are_put_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/npu")
    monkeypatch.setenv("SCRATCH", "/scratch")
    paths = ["~/a", "$SCRATCH/a", "${SCRATCH}/a", "$NOBODY_SET_THIS/a"]
    assert [expanded(path) for path in paths] == [
        "/home/npu/a",
        "/scratch/a",
        "/scratch/a",
        "$NOBODY_SET_THIS/a",
    ]


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


def test_two_caches_in_one_place_are_both_refused():
    assert set(faults(a="/tool", b="/tool/below", c="/tools")) == {"a", "b"}


def test_link_into_the_cache_directory_is_seen_through(tmp_path: Path):
    (tmp_path / "cache/M").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "cache/M")
    cache = NodeCache(name="mine", directory=str(tmp_path / "link"))
    own_places = {"ge": engine_directory(tmp_path / "cache", "ge")}
    assert "overlaps" in place_faults([cache], tmp_path / "cache", own_places)["mine"]
