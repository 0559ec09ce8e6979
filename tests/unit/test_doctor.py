"""`warmrank doctor` as people run it: exit codes, JSON, the table, and what the nodes of a cluster share."""

from __future__ import annotations

import json
import re
import socket
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tests.support.launching import loaded_config, store_launch, write_config
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.doctor import (
    LEVELS,
    Diagnosis,
    Finding,
    NodeFindings,
    diagnosis,
    error,
    note,
    ok,
    warning,
)
from warmrank.orchestrator.doctor.nodes import check_clock, check_environments, check_resources, no_answer
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.ui.table import render_diagnosis

ROOT = Path(__file__).parents[2]
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


def test_node_by_itself_is_looked_at_without_a_config():
    result = run("--device", "cpu")
    assert result.exit_code == 0, result.stdout
    assert "versions.torch" in result.stdout
    assert "store." not in result.stdout


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


def test_config_brings_its_store_and_its_disk(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    (tmp_path / "cache").mkdir(mode=0o700)
    result = run(tmp_path / "tiny.yaml", "--json")
    assert result.exit_code == 0, result.stdout
    names = ("store.reachable", "store.writable", "store.keys", "disk.cache_dir", "disk.free")
    assert {levels(result)[name] for name in names} == {"ok"}


def test_device_of_the_config_is_looked_for_unless_another_is_named(tmp_path: Path):
    path = write_config(tmp_path, device="cuda")
    assert json.loads(run(path, "--json").stdout)["device"] == "cuda"
    assert json.loads(run(path, "--device", "cpu", "--json").stdout)["device"] == "cpu"


def test_store_that_cannot_be_used_ends_with_one(tmp_path: Path):
    (tmp_path / "store").write_bytes(b"")
    result = run(write_config(tmp_path))
    assert result.exit_code == 1
    assert re.search(r"error +store.reachable", result.stdout)


def test_bad_config_ends_with_two_and_so_does_all_nodes_without_one(tmp_path: Path):
    assert run(tmp_path / "absent.yaml").exit_code == 2
    result = run("--all-nodes")
    assert (result.exit_code, "CONFIG" in result.stderr) == (2, True)


def test_all_nodes_of_a_config_without_a_cluster_is_this_machine(tmp_path: Path):
    result = run(write_config(tmp_path, store=None), "--all-nodes", "--json")
    assert len(json.loads(result.stdout)["nodes"]) == 1


def test_cluster_that_is_not_there_is_an_error_for_the_node(tmp_path: Path):
    result = run(write_config(tmp_path, store=None, ray={"address": "127.0.0.1:1"}), "--json")
    assert levels(result)["network.ray"] == "error"


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


def text_of(found: Diagnosis) -> str:
    file = StringIO()
    Console(file=file, width=100).print(render_diagnosis(found))
    return file.getvalue()


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


def test_findings_of_many_nodes_with_one_remedy_are_one_row():
    nodes = [found_on(node, error("disk.free", "5 B free", "free some")) for node in NODES]
    text = text_of(diagnosis("npu", "llama", nodes))
    assert text.startswith("16 nodes, device kind npu for config llama")
    assert (text.count("disk.free"), "all 16" in text) == (1, True)
    nodes[1] = found_on(NODES[1], error("disk.free", "0 B free", "free some"))
    text = " ".join(text_of(diagnosis("npu", "", nodes)).split())
    assert (text.count("disk.free"), "0 B free (atlas-1)" in text) == (1, True)
    assert "and 7 more" in text


def test_table_ends_with_what_was_counted():
    findings = (
        ok("a.one", "fine"),
        error("a.two", "bad", "mend"),
        note("b", "no tool"),
        warning("c", "x", ""),
    )
    found = diagnosis("npu", "", [found_on(NODES[0], *findings)], [ok("cluster.resources", "room")])
    text = text_of(found)
    assert found.worst == "error"
    assert "remedy: mend" in text
    assert "not checked: no tool" in text
    assert text.rstrip().endswith("1 error, 1 warning, 1 note, 2 checks fine")


def test_document_names_every_check():
    named = re.compile(r'"((?:versions|ascend|devices|limits|network|store|disk|clocks|cluster)\.[a-z_]+)"')
    sources = (ROOT / "orchestrator" / "doctor").glob("*.py")
    checks = {name for path in sources for name in named.findall(path.read_text())}
    checks |= {f"versions.{name}" for name in ("python", "torch", "ray", "torch_npu")}
    checks |= {"network.gloo_interface", "network.hccl_interface"}  # made from the variables' names
    page = (ROOT / "docs" / "clusters.md").read_text().partition("## `warmrank doctor`\n")[2]
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    documented: set[str] = set()
    for row in rows:
        topic = ""
        for name in re.findall(r"`([a-z_.]+)`", row):
            topic = name.partition(".")[0] or topic
            documented.add(f"{topic}.{name.partition('.')[2]}")
    assert {name for name in documented if name.partition(".")[2]} == checks
