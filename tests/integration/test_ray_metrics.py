"""Metrics of a launch, as a Prometheus server would scrape them from a node of Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.checkout import PYTHONPATH
from tests.support.ray_cluster import clean_environ

pytestmark = [pytest.mark.ray, pytest.mark.slow]

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


def test_node_exports_what_the_driver_hears(metrics_url: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    found: dict[tuple[str, str, str], float] = {}
    while ("ray_warmrank_stage_ranks", "compile", "running") not in found and time.monotonic() < until_s:
        found = scraped(metrics_url)
    assert found["ray_warmrank_stage_ranks", "compile", "running"] == 8
    assert found["ray_warmrank_stage_ranks", "build", "done"] == 16
    assert found["ray_warmrank_ranks", "", ""] == 16
    assert found["ray_warmrank_stage_seconds", "build", ""] == pytest.approx(5.2)
