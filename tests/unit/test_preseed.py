"""Which nodes are meant, and what becomes of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import blob_path, overwrite
from warmrank.cache_store.cache_dir.private_files import check_private
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.look.verify import cached_files
from warmrank.orchestrator.nodes import Node, choose, this_node
from warmrank.orchestrator.seed.here import seed_here

ONE = Node(node_id="aa11" * 14, address="10.0.0.1", host="one")
TWO = Node(node_id="aa22" * 14, address="10.0.0.2", host="two")
TWIN = Node(node_id="bb33" * 14, address="10.0.0.3", host="two")
NODES = (ONE, TWO, TWIN)


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("names", [[ONE.node_id], [ONE.node_id[:6]], ["10.0.0.1"], ["one", "10.0.0.1"]])
def test_node_is_found_once_by_id_address_or_host(names: list[str]):
    assert choose(NODES, names) == (ONE,)


def test_partitions_of_all_ranks_are_laid_out_private(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    found = seed_here(config)
    files = cached_files(config.cache_dir)
    assert (found.found, found.num_partitions, found.num_files, len(files)) == (True, 2, 4, 4)
    for path in files:
        check_private(path)


def test_launch_of_another_environment_is_a_miss_that_names_it(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", here={"torch": "2.12.0"})
    found = seed_here(config)
    assert not found.found
    assert "torch 2.12.0 -> " in found.reason
    assert "same components" not in found.reason


def test_damaged_blob_is_a_fault_and_not_laid_out(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    overwrite(blob_path(tmp_path / "store", b"right"), b"wrong")
    found = seed_here(config)
    assert found.faults
    assert cached_files(config.cache_dir) == ()


def test_verify_reads_again_what_did_not_seem_to_change(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    seed_here(config)
    damaged = next(path for path in config.cache_dir.rglob("compiled_module"))
    status = damaged.stat()
    damaged.write_bytes(b"wrong")
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = seed_here(config, options=FetchOptions(reread=True))
    variants = sorted(path.read_text() for path in damaged.parent.glob("compiled_module*"))
    assert (found.bytes_copied, variants) == (5, ["right", "wrong"])


def command(project: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["preseed", str(project / "tiny.yaml"), *options])


def test_without_a_cluster_this_machine_is_seeded(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    done = command(tmp_path, "--json", "--verify", "--node", this_node().host)
    assert done.exit_code == 0
    (seed,) = json.loads(done.stdout)
    assert (seed["node"]["host"], seed["found"], seed["attempts"]) == (this_node().host, True, 1)
    assert (seed["bytes_from_store"] > 0, seed["bytes_from_nodes"]) == (True, 0)


@pytest.mark.parametrize(
    "options",
    [
        ["--node", "elsewhere"],
        ["--here", "--watch"],
        ["--for", "3"],
        ["--until", "3"],
        ["--fan-out", "sometimes"],
        ["--watch"],
    ],
    ids=" ".join,
)
def test_bad_options_end_with_two(tmp_path: Path, options: list[str]):
    loaded_config(tmp_path)
    assert command(tmp_path, *options).exit_code == 2


def test_preseed_here_imports_neither_torch_nor_ray(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    code = (
        "import sys\n"
        "from warmrank.orchestrator.cli.main import app\n"
        f"app(['preseed', {str(tmp_path / 'tiny.yaml')!r}, '--here'], standalone_mode=False)\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "seeded" in done.stdout
