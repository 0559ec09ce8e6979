"""`warmrank doctor` as people run it: exit codes, JSON, and looks that fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.launched import loaded_config, store_launch, write_config
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.doctor import examine as doctor
from warmrank.orchestrator.doctor import look as doctor_look
from warmrank.orchestrator.doctor import look_disk as doctor_look_disk
from warmrank.orchestrator.doctor import look_limits as doctor_look_limits
from warmrank.orchestrator.doctor.findings import LEVELS
from warmrank.orchestrator.doctor.versions import RANGES, Probe
from warmrank.orchestrator.nodes import Node

ROOT = Path(__file__).parents[2]
FIELDS = {"check", "level", "what", "expected", "actual", "remedy"}


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was probed before, and a machine that belongs to no cluster."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor_look, "probe_torch", lambda device, environ: Probe(torch="2.13.0"))


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
    assert (found["schema_version"], found["device"], found["config"]) == (1, "cpu", "")
    (node,) = found["nodes"]
    assert set(node) == {"node", "findings", "environment", "seconds"}
    assert set(node["node"]) == {"node_id", "address", "host"}
    assert all(set(finding) == FIELDS for finding in node["findings"])
    assert all(finding["level"] in LEVELS for finding in node["findings"])


def test_npu_on_a_machine_without_one_says_what_is_missing():
    if Path("/dev/davinci0").exists():
        pytest.skip("this machine has NPUs")
    result = run("--device", "npu", "--json")
    assert result.exit_code == 1
    found = levels(result)
    assert found["devices.present"] == "error"
    assert "ascend.cann" in found
    assert json.loads(result.stdout)["worst"] == "error"


def test_config_brings_its_store_its_disk_and_clocks(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    (tmp_path / "cache").mkdir(mode=0o700)
    result = run(tmp_path / "tiny.yaml", "--json", "--set", "ray.num_cpus=4")
    assert result.exit_code == 0, result.stdout
    found = levels(result)
    wanted = ("store.reachable", "store.writable", "store.keys", "disk.private_files", "clocks.store")
    assert {found[name] for name in (*wanted, "clocks.records", "clocks.cache_dir")} == {"ok"}


def test_device_of_the_config_is_looked_for_unless_another_is_named(tmp_path: Path):
    path = write_config(tmp_path, device="cuda")
    assert json.loads(run(path, "--json").stdout)["device"] == "cuda"
    assert json.loads(run(path, "--device", "cpu", "--json").stdout)["device"] == "cpu"


def test_store_that_cannot_be_used_ends_with_one(tmp_path: Path):
    (tmp_path / "store").write_bytes(b"")
    result = run(write_config(tmp_path))
    assert result.exit_code == 1
    assert "error: store.reachable" in result.stdout


def test_config_without_a_store_is_looked_at(tmp_path: Path):
    result = run(write_config(tmp_path, store=None), "--json")
    assert levels(result)["store.reachable"] == "note"


def test_bad_config_ends_with_two(tmp_path: Path):
    assert run(tmp_path / "absent.yaml").exit_code == 2


def test_all_nodes_needs_a_config():
    result = run("--all-nodes")
    assert result.exit_code == 2
    assert "CONFIG" in result.stderr


def test_all_nodes_of_a_config_without_a_cluster_is_this_machine(tmp_path: Path):
    result = run(write_config(tmp_path, store=None), "--all-nodes", "--json")
    assert len(json.loads(result.stdout)["nodes"]) == 1


def test_cluster_that_is_not_there_is_an_error_for_the_node(tmp_path: Path):
    result = run(write_config(tmp_path, store=None, ray={"address": "127.0.0.1:1"}), "--json")
    assert levels(result)["network.ray"] == "error"


def test_look_that_fails_is_a_note_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object, **options: object) -> None:
        raise ValueError("odd file")

    monkeypatch.setattr(doctor_look_limits, "look_at_limits", broken)
    result = run("--device", "cpu", "--json")
    found = levels(result)
    assert found["limits"] == "note"
    assert "network.host_name" in found
    assert "ValueError: odd file" in result.stdout


def test_cache_directory_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_look_disk, "look_at_disk", lambda path, needed_bytes: None)
    result = run(write_config(tmp_path, store=None), "--json")
    assert levels(result)["disk.cache_dir"] == "error"


def test_streams_are_judged_by_the_captures_of_the_newest_launch(tmp_path: Path):
    config = loaded_config(tmp_path, device="npu")
    store_launch(config, tmp_path / "work")
    request = doctor.request_of(config, None)
    answer = doctor.examine(request, Node(node_id="", address="", host="here"))
    (found,) = [item for item in answer.findings.findings if item.check == "ascend.streams"]
    assert found.level == "ok"
    assert "of 1984 streams" in found.what


def test_document_names_every_check():
    topics = "versions|ascend|devices|limits|network|store|disk|clocks|cluster"
    named = re.compile(rf'"((?:{topics})\.[a-z_]+)"')
    sources = (ROOT / "orchestrator" / "doctor").glob("*.py")
    checks = {name for path in sources for name in named.findall(path.read_text())}
    checks |= {f"versions.{name}" for name in RANGES}
    checks |= {"network.gloo_interface", "network.hccl_interface"}  # made from the variables' names
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "doctor.md").read_text(), re.MULTILINE)
    documented: set[str] = set()
    for row in rows:
        topic = ""
        for name in re.findall(r"`([a-z_.]+)`", row):
            topic = name.partition(".")[0] or topic
            documented.add(f"{topic}.{name.partition('.')[2]}")
    assert {name for name in documented if name.partition(".")[2]} == checks
