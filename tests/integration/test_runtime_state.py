"""Launches whose ranks measure something first: a value decides which artifact is used, on each rank."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from tests.support.in_process import InProcessLauncher
from tests.support.launching import counts, data_of
from tests.support.workloads import MEASURED
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import CompileForbidden
from warmrank.orchestrator.inspect.explain import explain
from warmrank.orchestrator.inspect.store_contents import show_partition
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.stores import open_store
from warmrank.orchestrator.ui.report_table import render
from warmrank.orchestrator.ui.table import render_explanation, render_partition


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    MEASURED.clear()
    yield
    MEASURED.clear()


def config(root: Path, num_ranks: int, node: str = "n1") -> Config:
    workload = {"entrypoint": "tests.support.workloads:workload"}
    ranks = {"ranks": num_ranks, "parallel": {"dp": num_ranks}}
    return parse(data_of(root, workload=workload, cache_dir=str(root / node), **ranks))


def launched(root: Path, *blocks: int, node: str = "n1", no_compile: bool = False) -> Report:
    """A launch of one rank for each of the values that they measure."""
    MEASURED.update(enumerate(blocks))
    return launch(config(root, len(blocks), node), no_compile=no_compile, launcher=InProcessLauncher())


def text_of(renderable: RenderableType) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_each_value_has_its_artifact_and_finds_it_again(tmp_path: Path) -> None:
    assert counts(launched(tmp_path, 512)) == (2, 0, 0)
    assert counts(launched(tmp_path, 512, no_compile=True)) == (0, 2, 0)
    other = launched(tmp_path, 640)
    assert counts(other) == (2, 0, 0)
    assert {found.reason for found in other.ranks[0].functions} == {
        "runtime state kv_cache_blocks: 512 -> 640"
    }
    assert counts(launched(tmp_path, 512, no_compile=True)) == (0, 2, 0)
    assert counts(launched(tmp_path, 640, no_compile=True)) == (0, 2, 0)
    names = [path.name for path in (tmp_path / "n1").rglob("twice/compiled_module*")]
    assert sorted(names) == ["compiled_module", "compiled_module.1"]


def test_ranks_of_equal_values_share_and_others_compile_in_the_same_round(tmp_path: Path) -> None:
    report = launched(tmp_path, 512, 640, 512, 640)
    assert counts(report) == (4, 0, 4)
    digests = [[found.digest for found in rank.functions] for rank in report.ranks]
    assert digests[0] == digests[2] != digests[1] == digests[3]
    assert not any("refused" in found.reason for rank in report.ranks for found in rank.functions)


def test_report_and_its_table_have_the_values_of_each_rank(tmp_path: Path) -> None:
    report = launched(tmp_path, 512, 640, 512)
    assert [rank.functions[0].runtime_state for rank in report.ranks] == [
        {"kv_cache_blocks": "512"},
        {"kv_cache_blocks": "640"},
        {"kv_cache_blocks": "512"},
    ]
    table = text_of(render(report))
    assert "runtime state of Tiny.twice, Tiny.increment on ranks 0, 2: kv_cache_blocks 512\n" in table
    assert "runtime state of Tiny.twice, Tiny.increment on rank 1: kv_cache_blocks 640\n" in table


def test_manifests_record_the_values_and_show_and_explain_print_them(tmp_path: Path) -> None:
    launched(tmp_path, 512, 640)
    place = config(tmp_path, 2)
    assert place.store is not None
    store = open_store(place.store)
    view = show_partition(store, "world2global_rank1", place)
    assert {entry.runtime_state["kv_cache_blocks"] for entry in view.manifest.requests} == {"640"}
    assert "Tiny.twice      kv_cache_blocks 640" in text_of(render_partition(view))
    explained = text_of(render_explanation(explain(place, store)))
    assert "Tiny.twice on rank 0      kv_cache_blocks 512" in explained
    assert "Tiny.increment on rank 1  kv_cache_blocks 640" in explained


def test_new_node_loads_what_was_published_with_its_value(tmp_path: Path) -> None:
    launched(tmp_path, 512, 640)
    assert counts(launched(tmp_path, 512, 640, node="n2", no_compile=True)) == (0, 4, 0)
    with pytest.raises(CompileForbidden, match="runtime state kv_cache_blocks: "):
        launched(tmp_path, 512, 700, node="n3", no_compile=True)
