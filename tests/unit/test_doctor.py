"""`warmrank doctor` as people run it: exit codes, JSON, the table, and what the nodes of a cluster share."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.launching import write_config
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.doctor import (
    LEVELS,
    Finding,
    NodeFindings,
)
from warmrank.orchestrator.doctor.nodes import check_clock, check_environments, check_resources, no_answer
from warmrank.orchestrator.nodes import Node

NODES = tuple(Node(node_id=f"{number:02x}" * 28, address="", host=f"atlas-{number}") for number in range(16))

TORCH = """
import sys, types
__version__ = "2.13.0"
facts = types.ModuleType("warmrank.worker.torch_private.facts")
facts.examined = lambda name: []
sys.modules[facts.__name__] = facts
sys.modules["warmrank.worker.torch_private"] = types.SimpleNamespace(facts=facts)
"""


@pytest.fixture(autouse=True)
def _this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that imports in no time, and a machine that belongs to no cluster."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", *map(str, arguments)])


def levels(result: Result) -> dict[str, str]:
    (node,) = json.loads(result.stdout)["nodes"]
    return {finding["check"]: finding["level"] for finding in node["findings"]}


def test_json_has_a_stable_shape():
    found = json.loads(run("--device", "cpu", "--json").stdout)
    assert set(found) == {"schema_version", "device", "config", "worst", "cluster", "nodes"}
    assert (found["schema_version"], found["device"], found["config"]) == (2, "cpu", "")
    (node,) = found["nodes"]
    assert set(node) == {"node", "findings", "environment"}
    assert set(node["node"]) == {"node_id", "address", "host"}
    assert all(set(finding) == {"check", "level", "what", "remedy"} for finding in node["findings"])
    assert all(finding["level"] in LEVELS for finding in node["findings"])


def test_npu_on_a_machine_without_one_says_what_is_missing():
    if Path("/dev/davinci0").exists():
        pytest.skip("this machine has NPUs")
    result = run("--device", "npu", "--json")
    assert (result.exit_code, json.loads(result.stdout)["worst"]) == (1, "error")
    found = levels(result)
    assert (found["devices.present"], found["ascend.cann"]) == ("error", "error")


def test_bad_config_ends_with_two_and_so_does_all_nodes_without_one(tmp_path: Path):
    assert run(tmp_path / "absent.yaml").exit_code == 2
    result = run("--all-nodes")
    assert (result.exit_code, "CONFIG" in result.stderr) == (2, True)


def test_check_that_fails_is_a_note_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken() -> str:
        raise ValueError("odd file")

    monkeypatch.setattr(socket, "if_nameindex", broken)
    result = run(write_config(tmp_path, store=None), "--json")
    found = levels(result)
    assert (found["network"], found["disk.cache_dir"]) == ("note", "ok")
    assert "ValueError: odd file" in result.stdout


def found_on(node: Node, *findings: Finding, **environment: str) -> NodeFindings:
    return NodeFindings(node=node, findings=findings, environment=environment)


def test_room_for_ranks_is_counted_node_by_node():
    two = [{"CPU": 12.0}] * 2
    assert [item.level for item in check_resources(two, {"CPU": 8.0}, 2)] == ["ok"]
    (found,) = check_resources(two, {"CPU": 8.0}, 3)
    assert (found.level, "24 on 2 nodes have room for 2" in found.what) == ("error", True)


def test_nodes_that_differ_are_named_with_what_differs():
    nodes = [*(found_on(node, cann="9.1.0", torch="2.12.0") for node in NODES[:3])]
    assert [item.level for item in check_environments(nodes)] == ["ok"]
    assert [item.level for item in check_environments(nodes[:1])] == []
    nodes += [found_on(NODES[3], cann="9.0.0", torch="2.12.0"), no_answer(NODES[4], "died")]
    (found,) = check_environments(nodes)
    assert (found.level, "differ in cann" in found.what) == ("warning", True)
    assert "'9.0.0' on atlas-3" in found.what


@pytest.mark.parametrize(
    ("clock_s", "level"),
    [(1002.0, "ok"), (1100.0, "ok"), (1905.0, "error"), (101.0, "ok"), (100.0, "error")],
)
def test_clock_that_object_stores_refuse_is_an_error(clock_s: float, level: str):
    assert check_clock(clock_s, sent_s=1000.0, received_s=1005.0).level == level
