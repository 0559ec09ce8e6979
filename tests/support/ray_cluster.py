"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.support.processes import running

TIMEOUT_S = 120
# Between those that Ray gives to its workers and those that the kernel gives to anybody.
_QUIET_PORTS = range(20000, 32768)
_PROMISES: list[socket.socket] = []


@dataclass(frozen=True)
class RayCluster:
    """A running cluster.

    Attributes:
        address: of its head.
        dashboard: URL of its job server.
        environ: environment of commands that use it.
        sessions: the session of processes that each of its nodes is.
    """

    address: str
    dashboard: str
    environ: dict[str, str]
    sessions: tuple[int, ...]

    def raylet(self, node: int) -> int:
        """The process that is a node to Ray."""
        raylets = [pid for pid, text in running().items() if text.partition(" ")[0].endswith("/raylet")]
        (found,) = [pid for pid in raylets if os.getsid(pid) == self.sessions[node]]
        return found


@contextmanager
def ray_cluster(
    num_nodes: int = 1, environ: Mapping[str, str] | None = None, *, has_dashboard: bool = False
) -> Iterator[RayCluster]:
    """A cluster whose nodes are all on this machine; `submit` needs a dashboard, a dozen of processes.

    `ray stop` would end every Ray of this machine, so each node runs in a process group of its own. What is
    given as environment comes on top of `clean_environ`.
    """
    environ = {**clean_environ(), **(environ or {})}
    port, dashboard_port, client_port = free_ports(3)
    temp_dir = tempfile.mkdtemp(prefix="wr-", dir="/tmp")  # a socket's path may have 107 bytes
    head = (
        *(
            "--head",
            "--object-store-memory=100000000",
            f"--temp-dir={temp_dir}",
            "--dashboard-host=127.0.0.1",
            f"--include-dashboard={str(has_dashboard).lower()}",
        ),
        *(f"--port={port}", f"--ray-client-server-port={client_port}", f"--dashboard-port={dashboard_port}"),
    )
    address = f"127.0.0.1:{port}"
    nodes: list[subprocess.Popen[str]] = []
    try:
        for index in range(num_nodes):
            nodes.append(_start(head if index == 0 else (f"--address={address}",), environ))
            _await_up(nodes[-1])
        dashboard = f"http://127.0.0.1:{dashboard_port}"
        sessions = tuple(node.pid for node in nodes)
        yield RayCluster(address=address, dashboard=dashboard, environ=environ, sessions=sessions)
    finally:
        for node in reversed(nodes):
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=TIMEOUT_S)
        shutil.rmtree(temp_dir, ignore_errors=True)
        assert not [text for text in running().values() if temp_dir in text]


def clean_environ() -> dict[str, str]:
    """This process's environment, without its Ray settings, and with its interpreter as ``python``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    return {**environ, "PATH": path, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, and that nobody else is given until this process ends.

    Neither by the kernel, which takes others for sockets without a port of their own, nor by this function in
    another process: a socket whose name is the port's stands for the promise.
    """
    quiet = random.Random().sample(_QUIET_PORTS, len(_QUIET_PORTS))
    return list(islice(filter(_take, quiet), count))


def _take(port: int) -> bool:
    promise = socket.socket(socket.AF_UNIX)
    try:
        promise.bind(f"\0warmrank-tests-port-{port}")
        with socket.socket() as probe:
            probe.bind(("", port))
    except OSError:
        promise.close()
        return False
    _PROMISES.append(promise)
    return True


def _start(options: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[str]:
    (agent_port,) = free_ports(1)  # its default is taken where another Ray runs
    command = (
        *("ray", "start", "--block", "--disable-usage-stats", "--num-cpus=4", "--node-ip-address=127.0.0.1"),
        *(f"--dashboard-agent-listen-port={agent_port}", *options),
    )
    return subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _await_up(node: subprocess.Popen[str]) -> None:
    assert node.stdout is not None
    lines = []
    for line in node.stdout:
        lines.append(line)
        if "--block" in line:  # once all is up it prints that it runs until it is told to end
            return
    msg = f"ray start ended with {node.wait()}: {''.join(lines)}"
    raise RuntimeError(msg)
