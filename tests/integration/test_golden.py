"""What a launch leaves behind and says, against ``tests/golden``: names and formats that others rely on.

A change here changes what is persisted or printed for programs. Where that is meant, write the files anew
with ``WARMRANK_GOLDEN=write`` and say so in the changelog.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.checkout import ROOT
from tests.support.in_process import InProcessLauncher
from tests.support.launching import ENTRYPOINT, write_config
from tests.support.stored import overwrite, stored
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import to_json

GOLDEN = ROOT / "tests" / "golden"
# What differs from run to run: digests, the two digits of one that are a directory, the names of locks.
_RANDOM = (
    (r"[0-9a-f]{64}|(?<=_)[0-9a-f]{32}", "DIGEST"),
    (r"/[0-9a-f]{2}(?=/DIGEST)", "/XX"),
    (r"(?<=launch-)[0-9a-f]{12}", "LAUNCH"),
)
_DIGEST = re.compile(_RANDOM[0][0])


def check(name: str, found: object) -> None:
    """Compare with a golden file, or write it."""
    path = GOLDEN / f"{name}.json"
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if os.environ.get("WARMRANK_GOLDEN") == "write":
        path.write_text(text)
    assert json.loads(text) == json.loads(path.read_text())


def tree(root: Path) -> list[str]:
    """Paths below a directory, each once, with placeholders for what differs from run to run."""
    found = set()
    for path in root.rglob("*"):
        name = f"/{path.relative_to(root)}"
        for pattern, placeholder in _RANDOM:
            name = re.sub(pattern, placeholder, name)
        if path.is_file():
            found.add(name)
    return sorted(found)


def shape(value: Any) -> Any:
    """Names and types of a document; of a list the first member."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workload = {"entrypoint": ENTRYPOINT}
    return write_config(tmp_path_factory.mktemp("golden"), workload=workload, ranks=1, parallel={})


@pytest.fixture(scope="module")
def report(config: Path) -> dict[str, Any]:
    """The report of a cold launch."""
    found: dict[str, Any] = json.loads(to_json(launch(load(config), launcher=InProcessLauncher())))
    return found


def artifact(report: dict[str, Any]) -> tuple[bytes, dict[str, Any], bytes]:
    """First line, header and sections of the first function's file."""
    magic, header, sections = Path(report["ranks"][0]["functions"][0]["path"]).read_bytes().split(b"\n", 2)
    return magic, json.loads(header), sections


def test_report_has_these_fields(report: dict[str, Any]) -> None:
    check("report", shape(report))


def test_store_and_cache_directory_hold_these_files(report: dict[str, Any], config: Path) -> None:
    check("trees", {name: tree(config.parent / name) for name in ("store", "cache")})


def test_documents_of_the_store_have_these_fields(report: dict[str, Any], config: Path) -> None:
    documents = {}
    for kind in ("ac", "launch"):
        path, *_ = stored(config.parent / "store", kind)
        documents[kind] = [shape(json.loads(line)) for line in path.read_bytes().splitlines()]
    check("documents", documents)


def test_artifact_has_these_parts(report: dict[str, Any]) -> None:
    """All that does not depend on the machine: the traced graph, its conditions, the names of its key."""
    magic, header, sections = artifact(report)
    size = sum(length for _, length in header["sections"])
    assert len(sections) == size
    found = {
        "first line": _DIGEST.sub("DIGEST", magic.decode()),
        "header": sorted(header),
        "key components": sorted(header["components"]),
        "sections": [name for name, _ in header["sections"]],
        "roles": header["roles"],
        "engine": [header["engine"], header["engine_version"]],
    }
    check("artifact", found)


def test_commands_end_with_these_statuses(report: dict[str, Any], config: Path) -> None:
    run = CliRunner()

    def status(*words: str) -> int:
        return run.invoke(app, [*words]).exit_code

    path, other = str(config), "cache_dir=elsewhere"
    found = {
        "ls": status("ls", path),
        "verify": status("store", "verify", path),
        "explain": status("explain", path, "--set", other),
        "explain, nothing stored": status(
            "explain", path, "--set", "name=x", "--set", "workload.arguments.rows=9"
        ),
        "no config": status("ls", "nosuch.yaml"),
        "unknown key": status("ls", path, "--set", "rank=1"),
        "show, unknown partition": status("show", path, "world9global_rank8"),
    }
    blob, *_ = stored(config.parent / "store", "cas")
    overwrite(blob, blob.read_bytes()[:-1])
    found["verify, damaged"] = status("store", "verify", path)
    check("exit_codes", found)
