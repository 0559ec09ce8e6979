"""Launches of tensor-parallel ranks with engine torchair, on a Ray of two nodes; faults; a script.

`make test-npu` launches two ranks in `test_emulator.py`. The NPUs are emulated, and CANN's op_compiler
is made up; TorchAir's own Python does all between.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmrank.orchestrator.launch.report import FunctionReport, Report
from warmrank.worker.runtime.artifact import parse

if importlib.util.find_spec("torch_npu") is not None:
    from tests.support.node_artifacts import Tools
    from tests.support.npu_cluster import House, break_code, two_nodes

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

SCRIPT = str(Path(__file__).parents[1] / "support" / "npu_script.py")


@dataclass(frozen=True)
class Seen:
    """The launches of this module, in order, and what stood where after each."""

    house: House  # store and disks
    cold: Report  # two ranks, of which nothing is there
    wider: Report  # four ranks, on both nodes, after it
    installed_cold: list[str]  # packages in CANN after these
    compiled_cold: list[str]  # runs of op_compiler until then
    preseeded: str  # what the command said on a new node
    installed_new: list[str]  # packages in its CANN after the next launch
    warm: Report  # two ranks on it
    blobs: set[str]  # what the store held then
    damaged: Report  # two ranks on it, of whose artifacts TorchAir refuses three; without the store
    compiled: list[str]  # runs of op_compiler until then
    scripts: tuple[Report, Report]  # a script on two ranks, cold and warm


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    root = tmp_path_factory.mktemp("ranks")
    tools = Tools(root)
    house = House(root, tools)
    with two_nodes(tools):
        cold, wider = house.launch(2, "one"), house.launch(4, "one")
        installed_cold, compiled_cold = tools.installed, tools.compiled
        tools.install_anew()
        preseeded = house.preseed(2, "two")
        warm = house.launch(2, "two", no_compile=True)
        installed_new = tools.installed
        blobs = house.blobs()
        for path in (
            *house.compiled_modules("two", "*/*/project"),
            *house.compiled_modules("two", "*/world2global_rank1/step"),
        ):
            break_code(path)
        damaged = house.launch(2, "two", store=None)
        workload = {"script": SCRIPT}
        scripts = (
            house.launch(2, "script", workload=workload),
            house.launch(2, "script", workload=workload, no_compile=True),
        )
    return Seen(
        house=house, cold=cold, wider=wider, installed_cold=installed_cold, compiled_cold=compiled_cold,
        preseeded=preseeded, installed_new=installed_new, warm=warm, blobs=blobs, damaged=damaged,
        compiled=tools.compiled, scripts=scripts,
    )  # fmt: skip


def of_ranks(report: Report, function: str) -> list[FunctionReport]:
    return [item for rank in report.ranks for item in rank.functions if item.function == function]


def outcomes(report: Report, function: str) -> list[str]:
    """Of each rank."""
    return [item.outcome for item in of_ranks(report, function)]


def digests(*reports: Report) -> set[str]:
    return {item.digest for report in reports for rank in report.ranks for item in rank.functions}


def test_every_launch_is_verified_and_captures_every_shape_before_the_first_call(seen: Seen) -> None:
    for report in (seen.cold, seen.wider, seen.warm, seen.damaged):
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
        assert {item.num_captures for item in of_ranks(report, "Split.step")} == {2}
        assert {item.num_captures for item in of_ranks(report, "Split.project")} == {1}


def test_each_function_is_compiled_once_and_adopted_by_the_other_rank(seen: Seen) -> None:
    for function in ("Split.step", "Split.project"):
        assert sorted(outcomes(seen.cold, function)) == ["adopted", "compiled"]
    assert outcomes(seen.cold, "Split.step[1]") == ["loaded", "loaded"]


def test_each_rank_has_its_partition_and_the_store_one_blob_for_all(seen: Seen) -> None:
    partitions = {path.parent.parent.name for path in seen.house.compiled_modules("one")}
    assert partitions == {f"world{size}global_rank{rank}" for size in (2, 4) for rank in range(size)}
    manifests = seen.house.manifests(seen.cold.record) + seen.house.manifests(seen.wider.record)
    of_rank = [[entry for entry in manifest.artifacts if entry.scope == "rank"] for manifest in manifests]
    functions = [{entry.function for entry in entries} for entries in of_rank]
    assert functions == [{"Split.step", "Split.project"}] * 6
    assert {entry.sha256 for entries in of_rank for entry in entries} == digests(seen.cold)
    assert len(seen.blobs) == len(digests(seen.cold)) + len(seen.installed_cold)


def test_four_ranks_adopt_what_two_compiled_whatever_their_groups_are_called(seen: Seen) -> None:
    places = [(rank.node_rank, rank.local_rank) for rank in seen.wider.ranks]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert outcomes(seen.wider, "Split.step") == outcomes(seen.wider, "Split.project") == ["adopted"] * 4
    assert digests(seen.wider) == digests(seen.cold)
    for path in seen.house.compiled_modules("one"):
        assert b"warmrank group tp" in parse(path.read_bytes(), "").sections["torchair.py"]
    assert [node.artifacts.num_new for node in seen.wider.node_artifacts] == [0, 0]
    manifests = seen.house.manifests(seen.wider.record)
    assert [len(manifest.node_files()) for manifest in manifests] == [2, 0, 2, 0]


def test_first_rank_of_the_node_compiles_static_kernels_once_for_each_function(seen: Seen) -> None:
    assert len(seen.compiled_cold) == len(seen.installed_cold) == 2
    assert all("world2global_rank0" in directory for directory in seen.compiled_cold)
    (node,) = seen.cold.node_artifacts
    assert (node.artifacts.num_files, node.artifacts.num_new) == (2, 2)
    first, second = seen.house.manifests(seen.cold.record)
    prefixes = [file.relative.partition("/")[0] for file in first.node_files()]
    assert sorted(prefixes) == sorted(digest[:32] for digest in digests(seen.cold))  # they stay apart
    assert second.node_files() == ()


def test_new_node_loads_all_of_it_and_compiles_nothing(seen: Seen) -> None:
    assert "2 fetched" in seen.preseeded
    assert seen.installed_new == seen.installed_cold  # by TorchAir
    assert {item.outcome for rank in seen.warm.ranks for item in rank.functions} == {"loaded"}
    assert seen.warm.totals.fetched_bytes == 0
    assert digests(seen.warm) == digests(seen.cold)
    (node,) = seen.warm.node_artifacts
    assert (node.artifacts.num_new, node.artifacts.num_there, node.artifacts.skipped) == (0, 2, ())
    assert seen.compiled == seen.compiled_cold


def test_rank_whose_artifact_torchair_refuses_adopts_another_one_or_compiles_anew(seen: Seen) -> None:
    first, second = of_ranks(seen.damaged, "Split.step")
    assert (first.outcome, second.outcome) == ("loaded", "adopted")
    assert "no such kernel" in second.reason
    assert "world2global_rank0" in second.reason
    projects = {item.outcome: item for item in of_ranks(seen.damaged, "Split.project")}
    assert set(projects) == {"adopted", "compiled"}
    assert "no such kernel" in projects["compiled"].reason
    assert digests(seen.damaged) == digests(seen.cold)


def test_script_for_torchair_is_warm_the_second_time(seen: Seen) -> None:
    cold, warm = seen.scripts
    assert set(outcomes(cold, "Model.decode")) <= {"compiled", "adopted"}
    assert outcomes(warm, "Model.decode") == ["loaded", "loaded"]
    assert len(digests(cold, warm)) == 1
