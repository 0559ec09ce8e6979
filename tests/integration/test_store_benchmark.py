"""The store's benchmark in small: what it measured is what it says, whatever the seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.stored import REPOSITORY


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("benchmark")
    file = work / "figures.json"
    script = REPOSITORY / "benchmarks" / "store.py"
    command = [sys.executable, str(script), "--small", "--work", str(work), "--json", str(file)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in work.iterdir()] == [file.name]
    return {"printed": result.stdout, **json.loads(file.read_text())}


@pytest.mark.slow
def test_tree_has_the_shape_that_was_asked_for(figures):
    assert (figures["num_files"], figures["num_unique"]) == (100, 40)
    assert 2 << 20 <= figures["size_bytes"] <= (2 << 20) + 100


@pytest.mark.slow
def test_publish_hashes_every_file_once_and_copies_each_blob_once(figures):
    # Beside the files only the documents, before they are sealed and after.
    assert 0 <= figures["publish"]["bytes_hashed"] - figures["size_bytes"] < 500_000


def test_second_publish_hashes_no_file(figures):
    if "skipped" in figures["publish_again"]:
        assert "rsync" in figures["publish_again"]["skipped"]
        pytest.skip(figures["publish_again"]["skipped"])
    assert figures["publish_again"]["bytes_hashed"] < figures["unique_bytes"] / 100


def test_fetch_hashes_every_blob_once(figures):
    assert figures["fetch"]["bytes_read"] == figures["unique_bytes"]
    assert 0 <= figures["fetch"]["bytes_hashed"] - figures["unique_bytes"] < 500_000


def test_fetch_of_small_files_takes_little_memory(figures):
    assert 0 <= figures["fetch"]["peak_bytes"] < 200 << 20


def test_ratios_are_those_of_the_seconds(figures):
    for verb in ("publish", "fetch"):
        assert figures[verb]["ratio"] == figures[verb]["ours_s"] / figures[verb]["theirs_s"] > 0


def test_launch_grows_by_one_file_for_each_partition(figures):
    # FORMAT, the record, three blobs of all ranks and one of each stage, of which there are up to eight.
    expected = {world: 5 + min(world, 8) + world for world in (4, 16)}
    assert {item["world_size"]: item["store_files"] for item in figures["launches"]} == expected


def test_xfs_was_measured_or_the_reason_is_given(figures):
    xfs = figures["xfs"]
    assert xfs.get("skipped") or xfs["fetch"]["bytes_read"] == xfs["unique_bytes"]


def test_table_names_each_verb(figures):
    for verb in ("publish", "publish_again", "fetch"):
        assert f"\n{verb} " in figures["printed"]
