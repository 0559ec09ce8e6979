"""Audits with real workers: a value that hides from every condition is found before a rank adopts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.hidden_ranks import SHIFT, DyingLauncher, HidingLauncher
from tests.support.in_process import InProcessLauncher
from tests.support.launching import ENTRYPOINT, store_launch, write_config
from tests.support.stored import open_store, store_config
from warmrank.orchestrator.build.driver import BuildOptions, build
from warmrank.orchestrator.build.plan import target_here
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.config.reading import Config, load, parse
from warmrank.orchestrator.errors import LaunchFailed
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report

HIDDEN = {"entrypoint": "tests.support.hidden_ranks:workload"}
SCALED, PLAIN = "Scaled.scaled", "Scaled.plain"


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def config_of(root: Path, num_ranks: int = 4, **changes: Any) -> Config:
    data = {
        "workload": HIDDEN,
        "ranks": num_ranks,
        "parallel": {"tp": 2, "dp": num_ranks // 2},
        "cache_dir": str(root / "cache"),
        **changes,
    }
    return parse(data)


def artifacts(report: Report, name: str) -> list[str]:
    return [found.digest for rank in report.ranks for found in rank.functions if found.function == name]


def published(store: Path) -> list[set[str]]:
    """Functions of each partition in the only launch of a store."""
    opened = open_store(store)
    (record,) = opened.launches()
    manifests = [opened.manifest(ref.manifest_key) for ref in record.partitions]
    return [{entry.function for entry in manifest.artifacts} for manifest in manifests]


def withheld(root: Path) -> list[Path]:
    return list((root / "cache").rglob(".withheld_*"))


@pytest.mark.parametrize("audit", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_rank_dependence_behind_all_guards_is_found(tmp_path: Path, audit: str) -> None:
    report = launch(config_of(tmp_path, audit=audit), launcher=HidingLauncher())
    assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    first, second, *others = artifacts(report, SCALED)
    assert first != second
    assert others == [first, second]
    assert len(set(artifacts(report, PLAIN))) == 1
    assert "Scaled.scaled is traced otherwise on rank" in report.problems[0]
    assert "graph " in report.problems[0]
    assert "tests.support.hidden_ranks" in report.problems[0]


def test_without_an_audit_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="arithmetic"):
        launch(config_of(tmp_path, 2, audit="off"), launcher=HidingLauncher())


@pytest.mark.slow
def test_finding_is_not_published_and_kept_from_other_partitions(tmp_path: Path) -> None:
    store = tmp_path / "store"
    launch(config_of(tmp_path, 2, store=store_config(store)), launcher=HidingLauncher())
    assert published(store) == [{PLAIN}] * 2
    assert len({path.parent.name for path in withheld(tmp_path)}) == 1
    for audit in ("one", "all", "off"):
        config = config_of(tmp_path, 2, store=store_config(store), audit=audit)
        again = launch(config, launcher=HidingLauncher())
        assert again.totals.num_loaded == 4
        assert "of an earlier launch, Scaled.scaled is traced otherwise on rank 1" in again.problems[0]
    assert published(store) == [{PLAIN}] * 2
    larger = launch(config_of(tmp_path, 4, store=store_config(store)), launcher=HidingLauncher())
    assert all(rank.verification is not None and rank.verification.ok for rank in larger.ranks)


@pytest.mark.slow
def test_retry_of_an_attempt_that_died_in_the_audit_audits_again(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed):
        launch(config_of(tmp_path, 2, retries={"rank": 0}), launcher=DyingLauncher())
    report = launch(config_of(tmp_path, 2), launcher=HidingLauncher())
    assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    assert "differs" in [item.outcome for item in report.timeline.audits]


@pytest.mark.parametrize(
    ("launcher", "arguments"),
    [
        (DyingLauncher(), {"kinds": 1}),  # between compile and audit
        (DyingLauncher("release", lost=(0, 1)), {"shown": True}),  # each has its own, and conditions say so
        (DyingLauncher("release"), {"shown": True}),
    ],
)
@pytest.mark.parametrize("audit", ["all", "one", "off"])
def test_launch_after_one_that_was_cut_off_in_its_audits_publishes_everything(
    tmp_path: Path, launcher: DyingLauncher, arguments: dict[str, Any], audit: str
) -> None:
    settings = {
        "workload": {**HIDDEN, "arguments": arguments},
        "store": store_config(tmp_path / "store"),
        "retries": {"rank": 0},
    }
    with pytest.raises(LaunchFailed):
        launch(config_of(tmp_path, 2, **settings), launcher=launcher)
    assert withheld(tmp_path)
    alike = InProcessLauncher() if "kinds" in arguments else HidingLauncher()
    report = launch(config_of(tmp_path, 2, audit=audit, **settings), launcher=alike)
    assert report.problems == ()
    assert withheld(tmp_path) == []
    assert published(tmp_path / "store") == [{SCALED, PLAIN}] * 2


def built_config(root: Path, **arguments: int) -> Path:
    workload = {**HIDDEN, "arguments": arguments}
    return write_config(root, workload=workload, ranks=4, parallel={"tp": 2, "dp": 2})


def audited(config: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["audit", str(config), "--json", "--jobs", "1"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.slow  # four processes
def test_build_audits_and_a_cache_is_proven_fresh_and_found_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = built_config(tmp_path, kinds=1)
    report = build(load(config), BuildOptions(target=target_here()))
    assert {item.outcome for item in report.audits} == {"equal"}
    assert len(report.audits) == 2
    code, found = audited(config)
    assert (code, found["outcome"]) == (0, "fresh")
    assert {(item["function"], item["outcome"]) for item in found["functions"]} == {
        (SCALED, "equal"),
        (PLAIN, "equal"),
    }
    monkeypatch.setenv(SHIFT, "5")
    code, found = audited(config)
    assert (code, found["outcome"]) == (4, "stale")
    (differing,) = (item for item in found["functions"] if item["outcome"] == "differs")
    assert (differing["function"], differing["ranks"]) == (SCALED, [0, 1, 3])
    assert "scaled: return" in differing["reason"]


@pytest.mark.slow
def test_cache_is_fresh_after_a_newer_launch_of_other_sources(tmp_path: Path) -> None:
    path = built_config(tmp_path, kinds=1)
    config = load(path)
    build(config, BuildOptions(target=target_here()))
    store_launch(config, tmp_path / "work", world_size=4)
    code, found = audited(path)
    assert (code, found["outcome"], found["not_compared"]) == (0, "fresh", [])


@pytest.mark.slow  # seven processes
def test_build_finds_what_hides_from_all_conditions_and_an_audit_that_it_is_not_stored(
    tmp_path: Path,
) -> None:
    config = built_config(tmp_path)
    report = build(load(config), BuildOptions(target=target_here()))
    assert "Scaled.scaled is traced otherwise on rank" in report.problems[0]
    assert any(SCALED in what for what in report.not_built)
    code, found = audited(config)
    assert (code, found["outcome"]) == (3, "incomplete")
    assert {item["function"] for item in found["functions"] if item["outcome"] == "missing"} == {SCALED}


def test_audit_of_equal_ranks_finds_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, 2, workload={"entrypoint": ENTRYPOINT})
    report = launch(config, launcher=InProcessLauncher())
    assert [item.outcome for item in report.timeline.audits] == ["equal", "equal"]
    assert report.problems == ()
    assert all(item.seconds > 0 and item.cpu_s > 0 for item in report.timeline.audits)


CHECKED = """
import torch
from warmrank import Call, Verification, Workload
from warmrank.inference import cache_compile


def workload(context):
    model = torch.nn.Linear(4, 4).eval()
    forward = cache_compile(model.forward, dynamic=False)

    def check():
        forward(torch.ones(3, 4))
        return Verification(ok=True, max_error=0.0, tolerance=0.0, compared="nothing")

    return Workload(model=model, calls=(Call(function=forward, args=(torch.ones(2, 4),)),), check=check)
"""


@pytest.mark.slow  # a process
def test_audit_of_every_rank_does_not_advise_to_trace_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_model.py").write_text(CHECKED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    workload = {"entrypoint": "checked_model:workload"}
    config = write_config(
        tmp_path, workload=workload, ranks=1, parallel={}, store=store_config(tmp_path / "store")
    )
    launch(load(config), launcher=InProcessLauncher())
    code, found = audited(config)
    assert (code, found["outcome"]) == (3, "incomplete")
    (left_out,) = found["not_compared"]
    assert "every-rank" not in left_out["reason"]
