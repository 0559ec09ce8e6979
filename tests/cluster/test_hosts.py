"""`warmrank up` and `down` on two hosts with a network between them, started as an operator starts them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.netns import Network, Node, network, until
from tests.support.ray_cluster import clean_environ

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(600)]


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        for index, name in enumerate(("n1", "n2"), start=1):
            made.add(name, index)
        yield made


def entry(node: Node) -> dict[str, object]:
    connect = shlex.join(node.enter())
    return {"host": node.name, "address": node.address, "connect": connect, "resources": {"NPU": 8}}


def hosts_file(net: Network) -> Path:
    path = net.base / "hosts.yaml"
    data = {
        "hosts": [entry(node) for node in net.nodes.values()],
        "python": sys.executable,
        "num_cpus": 2,
        "temp_dir": str(net.base),
        "dashboard_port": None,
        "ray_options": ["--object-store-memory=100000000"],
        "start_s": 60,
    }
    path.write_text(yaml.safe_dump(data))
    return path


def warmrank(*words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "warmrank", *words)
    return subprocess.run(
        command, env=clean_environ(), capture_output=True, text=True, timeout=400, check=False
    )


def test_two_hosts_come_up_a_lost_one_is_told_and_brought_back_and_all_go_down(net: Network) -> None:
    hosts = str(hosts_file(net))
    done = warmrank("up", hosts, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["address"] == f"{net.nodes['n1'].address}:6379"
    found = [(host["host"], host["state"], host["address"], host["resources"]) for host in report["hosts"]]
    offers = {"CPU": 2, "NPU": 8}
    assert found == [(name, "started", node.address, offers) for name, node in sorted(net.nodes.items())]
    second = net.nodes["n2"]
    for pid in second.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status = warmrank("up", hosts, "--status")
    assert (status.returncode, "n2         down" in status.stdout) == (1, True), status.stdout
    assert warmrank("up", hosts).returncode == 0
    assert any("raylet" in line for line in second.processes().values())
    done = warmrank("down", hosts)
    assert done.returncode == 0, done.stderr
    for node in net.nodes.values():
        until(lambda node=node: not node.processes(), timeout_s=60, what=f"nothing left on {node.name}")  # type: ignore[misc]
    assert list(net.base.glob("wr-*")) == []
