"""Launches on Ray: gangs of two real ranks, ways of failing, metrics, jobs, and what is left afterwards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.checkout import PYTHONPATH, ROOT, ended, python
from tests.support.launching import ENTRYPOINT, counts, data_of
from tests.support.processes import still_there
from tests.support.ray_cluster import RayCluster, clean_environ, ray_cluster
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import CannotStart, LaunchFailed
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report, read_report
from warmrank.orchestrator.nodes import Gang

pytestmark = pytest.mark.ray


class WatchedLauncher(RayLauncher):
    """Keeps the gang, so that a test can see whether its processes ended."""

    gang: Gang | None = None

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        self.gang = super().start(num_ranks, timeout_s=timeout_s)
        return self.gang

    def left_over(self) -> list[int]:
        return still_there(placement.pid for placement in self.gang.placements) if self.gang else []


def config_of(tmp_path: Path, **changes: Any) -> Config:
    return parse(data_of(tmp_path, **changes))


def faulty(fault: str) -> dict[str, Any]:
    return {"entrypoint": ENTRYPOINT, "arguments": {"fault": fault}}


def failure(config: Config, launcher: WatchedLauncher | None = None) -> tuple[LaunchFailed, WatchedLauncher]:
    launcher = launcher or WatchedLauncher(config)
    with pytest.raises(LaunchFailed) as caught:
        launch(config, launcher=launcher)
    return caught.value, launcher


Pair = tuple[Report, Report]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return config_of(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def cold_and_warm(cluster: str, tiny: Config) -> Pair:
    return launch(tiny), launch(tiny, no_compile=True)


def test_two_ranks_in_processes_of_their_own_compile_each_function_once_and_load_it_warm(
    cold_and_warm: Pair,
) -> None:
    cold, warm = cold_and_warm
    assert (counts(cold), counts(warm)) == ((2, 0, 2), (0, 4, 0))
    for report in cold_and_warm:  # the sum over the ranks is right
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
    pids = {rank.pid for report in cold_and_warm for rank in report.ranks}
    assert len(pids - {os.getpid()}) == 4
    assert still_there(pids) == []


def test_ranks_hash_alike_so_that_sets_have_one_order_in_every_launch(cluster: str, tmp_path: Path) -> None:
    entrypoint = ENTRYPOINT.replace(":workload", ":hashes")
    report = launch(config_of(tmp_path, workload={"entrypoint": entrypoint}))
    (hashed,) = {rank.verification.max_error for rank in report.ranks if rank.verification is not None}
    seeded = python("-c", 'print(hash("warmrank") % 1_000_000)', PYTHONHASHSEED="0")
    assert hashed == float(seeded)


def test_log_of_each_rank_holds_its_own_lines(cold_and_warm: Pair) -> None:
    for rank in cold_and_warm[1].ranks:
        text = Path(rank.log).read_text()
        assert f"rank {rank.rank} " in text
        assert "loaded from" in text
        assert Path(rank.log).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("end", ["die", pytest.param("terminate", marks=pytest.mark.slow)])
def test_rank_that_dies_is_named_and_nothing_is_left_of_the_launch(
    cluster: str, tmp_path: Path, end: str
) -> None:
    error, launcher = failure(config_of(tmp_path, workload=faulty(end), retries={"rank": 0}))
    assert error.stage == "build"
    assert [(found.rank, found.kind) for found in error.failures] == [(1, "died")]
    assert re.search("its process (ended|is gone)", str(error))  # the latter where Ray is slow to say how
    assert f"logs: {tmp_path / 'cache' / '.logs' / 'tiny'}/" in str(error)
    assert launcher.left_over() == []
    assert not list((tmp_path / "store").glob("launch/*/*"))


@pytest.mark.slow
def test_launch_that_raised_names_the_line_and_frees_its_resources(cluster: str, tmp_path: Path) -> None:
    error, launcher = failure(config_of(tmp_path, workload=faulty("raise")))
    assert "rank 1: FileNotFoundError: no weights here (tiny_workload.py:" in str(error)
    assert launcher.left_over() == []
    launcher = WatchedLauncher(config_of(tmp_path, ray={"num_cpus_per_rank": 2}))
    try:
        assert len(launcher.start(2, timeout_s=120).placements) == 2
    finally:
        launcher.stop()


def test_missing_resources_are_named_in_bounded_time(cluster: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, ray={"num_cpus_per_rank": 3}, timeouts={"start_s": 2})
    with pytest.raises(CannotStart, match=r"2 x 3 = 6 wanted, 4 there, 2 too few"):
        launch(config)


@pytest.mark.slow
def test_plain_script_is_warm_the_second_time(cluster: str, tmp_path: Path) -> None:
    script = ROOT / "tests" / "support" / "exec_model.py"
    config = config_of(tmp_path, workload={"script": str(script)})
    assert counts(launch(config)) == (1, 0, 1)  # on one node the other rank waits, and adopts
    assert counts(launch(config, no_compile=True)) == (0, 2, 0)


TIMEOUT_S = 60.0


# In a process of its own: it starts a Ray, and that of other tests may be initialised in this one.
LAUNCH = """
import sys
import ray
from tests.support.made_reports import until_compile
from warmrank.orchestrator.launch.events import LaunchState
from warmrank.orchestrator.ui.outputs import RayMetrics

ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False,
         _temp_dir=sys.argv[1], _system_config={"metrics_report_interval_ms": 500})
(node,) = ray.nodes()
listener, state = RayMetrics("tiny"), LaunchState(num_ranks=16)
for event in until_compile(16):
    state.apply(event)
    listener(state, event)
print(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture
def metrics_url() -> Iterator[str]:
    """Where the node of a launch that compiles is scraped."""
    temp_dir = tempfile.mkdtemp(prefix="wr-", dir="/tmp")  # a socket's path may have 107 bytes
    environ = {**clean_environ(), "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-c", LAUNCH, temp_dir]
    try:
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as launch:
            assert launch.stdout is not None
            yield launch.stdout.readline().strip()
            launch.communicate(timeout=TIMEOUT_S)
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


def scraped(url: str) -> dict[tuple[str, str, str], float]:
    """Values of this package's metrics by name, stage and state; empty while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - a node of the test's own
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {
        (sample.name, sample.labels.get("stage", ""), sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ray_warmrank_") and sample.labels.get("launch") == "tiny"
    }


@pytest.mark.slow
def test_node_exports_what_the_driver_hears(metrics_url: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    found: dict[tuple[str, str, str], float] = {}
    while ("ray_warmrank_stage_ranks", "compile", "running") not in found and time.monotonic() < until_s:
        found = scraped(metrics_url)
    assert found["ray_warmrank_stage_ranks", "compile", "running"] == 8
    assert found["ray_warmrank_stage_ranks", "build", "done"] == 16
    assert found["ray_warmrank_ranks", "", ""] == 16
    assert found["ray_warmrank_stage_seconds", "build", ""] == pytest.approx(5.2)


@pytest.fixture(scope="module")
def job_cluster() -> Iterator[RayCluster]:
    with ray_cluster(has_dashboard=True) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory: a model and a config, and none of warmrank's packages."""
    directory = tmp_path / "project"
    directory.mkdir()
    shutil.copy(ROOT / "tests" / "support" / "tiny_workload.py", directory / "tiny.py")
    config = {
        "workload": {"entrypoint": "tiny:workload"},
        "ranks": 1,
        "cache_dir": str(tmp_path / "cache"),
        "store": store_config(tmp_path / "store"),
    }
    (directory / "tiny.yaml").write_text(yaml.safe_dump(config))
    return directory


def submit(job_cluster: RayCluster, project: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    words = ("submit", "tiny.yaml", "--address", job_cluster.dashboard, *map(str, options))
    return ended("-m", "warmrank", *words, cwd=project, environ=job_cluster.environ)


@pytest.mark.slow
def test_job_launches_on_the_running_cluster_and_stores(
    job_cluster: RayCluster, project: Path, tmp_path: Path
):
    report, trace, metrics = (tmp_path / "reports" / f"job.{kind}" for kind in ("json", "trace", "prom"))
    done = submit(job_cluster, project, "--json", report, "--trace", trace, "--metrics", metrics)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_report(report).totals.num_compiled == 2
    assert '"name":"compile"' in trace.read_text()
    assert "warmrank_launch" in metrics.read_text()
    assert "2 compiled" in done.stdout
    assert "SUCCEEDED" in done.stderr
    assert list((tmp_path / "store" / "launch").rglob("*/*/*"))


@pytest.mark.slow
def test_job_ends_with_the_exit_status_of_its_launch(job_cluster: RayCluster, project: Path):
    done = submit(job_cluster, project, "--no-compile")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "compiling is forbidden" in done.stdout
