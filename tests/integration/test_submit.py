"""A launch as a job of a real Ray cluster, from a directory that holds nothing but a model and a config."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.checkout import ROOT, ended
from tests.support.ray_cluster import RayCluster, ray_cluster
from tests.support.stored import store_config
from warmrank.orchestrator.launch.report import read_report

JOB_TIMEOUT_S = 240

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
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


def submit(cluster: RayCluster, project: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    words = ("submit", "tiny.yaml", "--address", cluster.dashboard, *map(str, options))
    return ended("-m", "warmrank", *words, cwd=project, environ=cluster.environ)


@pytest.mark.slow
def test_job_launches_on_the_running_cluster_and_stores(cluster: RayCluster, project: Path, tmp_path: Path):
    report, trace, metrics = (tmp_path / "reports" / f"job.{kind}" for kind in ("json", "trace", "prom"))
    done = submit(cluster, project, "--json", report, "--trace", trace, "--metrics", metrics)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_report(report).totals.num_compiled == 2
    assert '"name":"compile"' in trace.read_text()
    assert "warmrank_launch" in metrics.read_text()
    assert "2 compiled" in done.stdout
    assert "SUCCEEDED" in done.stderr
    assert list((tmp_path / "store" / "launch").rglob("*/*/*"))


@pytest.mark.slow
def test_job_ends_with_the_exit_status_of_its_launch(cluster: RayCluster, project: Path):
    done = submit(cluster, project, "--no-compile")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "compiling is forbidden" in done.stdout
