"""`warmrank up` and `down` with the real Ray, on one host that is this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.support.processes import marked
from tests.support.ray_cluster import free_ports
from warmrank.orchestrator.cluster import bring
from warmrank.orchestrator.cluster.host_side import MARK
from warmrank.orchestrator.cluster.hosts import load_hosts

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_one_host_comes_up_offers_what_it_should_and_leaves_nothing(tmp_path: Path):
    port, agent_port, client_port = free_ports(3)
    path = tmp_path / "hosts.yaml"
    options = [
        f"--dashboard-agent-listen-port={agent_port}",
        f"--ray-client-server-port={client_port}",
        "--object-store-memory=100000000",
    ]
    data = {
        "name": f"one-{port}",
        "hosts": ["here"],
        "connect": "env",
        "python": sys.executable,
        "port": port,
        "dashboard_port": None,
        "num_cpus": 1,
        "resources": {"NPU": 4},
        "ray_options": options,
    }
    path.write_text(yaml.safe_dump(data))
    hosts = load_hosts(path)
    try:
        report = bring.up(hosts)
        (here,) = report.hosts
        assert (report.address.endswith(f":{port}"), here.state) == (True, "started")
        assert here.resources == {"CPU": 1.0, "NPU": 4.0}
        assert [host.state for host in bring.up(hosts).hosts] == ["up"]
    finally:
        bring.down(hosts)
    assert marked(f"{MARK}={hosts.head.mark}") == {}
    assert not Path(hosts.head.directory).exists()
