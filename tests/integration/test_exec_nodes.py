"""`warmrank exec` on two nodes of a Ray cluster: places, output, failures, what is published; torchrun."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import PYTHONPATH, ROOT, ended
from tests.support.launching import loaded_config, write_config
from tests.support.processes import marked, still_there
from tests.support.ray_cluster import RayCluster, ray_cluster
from tests.support.stored import open_store

pytestmark = pytest.mark.slow

TIMEOUT_S = 240
RANK = (sys.executable, "-m", "tests.support.exec_rank", "--ranks={node_rank}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(num_nodes=2) as running:
        yield running


class Project:
    """A config of two ranks that need a node each."""

    def __init__(self, directory: Path, cluster: RayCluster) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self._environ = {**cluster.environ, "PYTHONPATH": PYTHONPATH, "WARMRANK_TEST": self.mark}
        self.changes: dict[str, Any] = {
            "ray": {"address": cluster.address, "num_cpus_per_rank": 3, "ship_code": False}
        }
        self.config = loaded_config(directory, **self.changes)

    def exec(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ended("-m", "warmrank", "exec", str(self.path), *arguments, environ=self._environ)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "warmrank", "exec", str(self.path), *arguments],
            env=self._environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def left(self) -> list[int]:
        """Processes of the command, which alone know the cache directory by its variable."""
        return still_there(marked(f"TORCHAIR_CACHE_HOME={self.config.cache_dir}"))

    @property
    def path(self) -> Path:
        return write_config(self.directory, **self.changes)


@pytest.fixture
def project(tmp_path: Path, cluster: RayCluster) -> Project:
    return Project(tmp_path, cluster)


@pytest.mark.ray
def test_each_node_runs_its_part_and_the_driver_commits_the_whole(project: Project) -> None:
    report = project.directory / "out.json"
    code = f'cd {ROOT} && echo "node {{node_rank}} of {{nnodes}}, $WARMRANK_NPROC of {{ranks}}" && exec "$@"'
    done = project.exec("--json", str(report), "--", "sh", "-c", code, "sh", *RANK)
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split(" | ")[1] for line in done.stdout.splitlines())
    assert lines == ["node 0 of 2, 1 of 2", "node 1 of 2, 1 of 2", "ready", "ready"]
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"0", "1"}
    found = json.loads(report.read_text())
    assert [node["status"] for node in found["nodes"]] == [0, 0]
    (record,) = open_store(project.directory / "store").launches()
    assert [ref.rank for ref in record.partitions] == [0, 1]


@pytest.mark.ray
def test_first_failure_ends_the_command_on_all_nodes(project: Project) -> None:
    code = 'if [ {node_rank} = 1 ]; then exit 5; fi; echo "$1" up; exec sleep 600'
    done = project.exec("--publish-when", "none", "--", "sh", "-c", code, "sh", project.mark)
    assert done.returncode == 5, done.stderr
    assert "stopped on the other nodes" in done.stderr
    assert project.left() == []


@pytest.mark.ray
def test_program_that_nodes_lack_is_an_error_with_the_shells_status(project: Project) -> None:
    done = project.exec("--", "nosuch-program")
    assert done.returncode == 127, done.stderr
    assert "'nosuch-program' cannot be run" in done.stderr


@pytest.mark.ray
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_command_ends_on_all_nodes_with_its_driver(project: Project, number: signal.Signals) -> None:
    driver = project.start("--grace", "1", "--", "sh", "-c", "setsid sleep 600 & echo up; sleep 600")
    with driver:
        assert driver.stdout is not None
        assert [driver.stdout.readline().split(" | ")[1] for _ in range(2)] == ["up\n", "up\n"]
        driver.send_signal(number)
        assert driver.wait(TIMEOUT_S) == (130 if number == signal.SIGINT else -number)
    assert project.left() == []


TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes={nnodes}", "--node-rank={node_rank}"),
    *("--master-addr={master_addr}", "--master-port={master_port}", "--nproc-per-node={nproc}"),
    str(ROOT / "tests" / "support" / "exec_model.py"),
)


def ranks_of(tmp_path: Path, command: tuple[str, ...], **changes: object) -> tuple[list[str], str]:
    """What each rank printed, and what warmrank said."""
    config = write_config(tmp_path, **changes)
    done = ended("-m", "warmrank", "exec", str(config), "--here", "--", *command)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


def test_second_node_compiles_nothing_under_torchrun(tmp_path: Path) -> None:
    ranks, said = ranks_of(tmp_path, TORCHRUN)
    outcomes = {rank.split()[-1] for rank in ranks}  # a rank that comes later waits for the other's compile
    assert {"compiled"} <= outcomes <= {"compiled", "adopted"}
    assert "published 2 ranks" in said
    second = {"cache_dir": str(tmp_path / "second"), "no_compile": True}
    ranks, said = ranks_of(tmp_path, TORCHRUN, **second)
    assert ranks == ["rank 0 loaded", "rank 1 loaded"]
    assert "2 partitions in the cache" in said
