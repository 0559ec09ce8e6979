"""A Ray cluster, and an object store, on nodes in network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.checkout import PYTHONPATH
from tests.support.netns import COMMAND_S, Ended, Network, Node, Running, network, until
from tests.support.s3_server import BUCKET, ENVIRONMENT, PATIENT_S
from tests.support.stored import store_config
from warmrank.orchestrator.launch.report import Report, from_json

PORT = 6379
_RAY_START_S = 90.0
# Ray's health checks stay as they are by default, as at users': a node is dead to it after about a minute.
_DEATH_S = 180.0
_FOREIGN = ("RAY_", "WARMRANK_", "AWS_", "XDG_")
_NOT_OURS = ("pymp-", "torchinductor_")  # of Ray's dashboard, and of an import of torch's compiler
# Ray's own processes that come later than its start, and those that it keeps for the next task.
_OF_RAY = (
    *("/bin/ray start", "/ray/core/src/", "ray-dashboard-"),
    *("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE"),
)


# Ray's dashboard would tell as well, on a busy machine half a minute late.
_ALIVE = """
import sys
from ray._raylet import GcsClient
nodes = GcsClient(sys.argv[1]).get_all_node_info(timeout=10).values()
print(*sorted(node.node_manager_hostname for node in nodes if node.state == 0))
"""


class Cluster:
    """A running Ray cluster; use `ray_nodes`.

    Args:
        net: where its nodes are added.
        num_cpus: that each node says to have, and so of ranks on it.
        environ: what everything that runs in its nodes has in its environment besides.
    """

    def __init__(self, net: Network, *, num_cpus: int, environ: Mapping[str, str]) -> None:
        self.net = net
        self.num_cpus = num_cpus
        self._more_environ = dict(environ)
        self._num_added = 0
        self._commands: list[Running] = []
        self.head = self._prepared()
        _await_up(*self._begin(self.head, "--head", f"--port={PORT}", "--include-dashboard=false"))
        self._of_head = frozenset(self.head.processes())

    @property
    def address(self) -> str:
        """Where drivers join it."""
        return f"{self.head.address}:{PORT}"

    @property
    def shared(self) -> Path:
        """A directory that all nodes share."""
        return self.net.base / "shared"

    @property
    def cache_dir(self) -> Path:
        """A cache directory that each node has by itself."""
        return self.net.disk / "cache"

    def cache_of(self, node: Node) -> Path:
        """Where a node's cache directory lies on this machine."""
        return node.disk / "cache"

    def add_nodes(self, count: int) -> tuple[Node, ...]:
        """New nodes that join, all at once."""
        added = tuple(self._prepared() for _ in range(count))
        logs = [self._begin(node, f"--address={self.address}") for node in added]
        for log in logs:
            _await_up(*log)
        return added

    def kill_node(self, node: Node, *, silently: bool = True) -> None:
        """End a node at once; see `Network.kill`."""
        self.net.kill(node, silently=silently)

    def await_alive(self) -> None:
        """Wait until Ray believes of the nodes that are up that they are alive, and of no other."""
        wanted = sorted(self.net.nodes)
        until(
            lambda: self.alive() == wanted,
            timeout_s=_DEATH_S,
            what=lambda: f"alive are {wanted}; to Ray {self.alive()}",
        )

    def restore(self, num_nodes: int) -> None:
        """Have so many nodes alive, and none that Ray believes to be dead."""
        self.end_commands()
        for name in set(self.net.nodes) - set(self.alive()):
            self.kill_node(self.net.nodes[name])
        self.add_nodes(max(0, num_nodes - len(self.net.nodes)))
        self.await_alive()

    def temporary_files(self) -> list[str]:
        """Files that launches left in the directories for temporary files of all nodes."""
        found = [path for node in self.net.nodes.values() for path in (node.disk / "tmp").iterdir()]
        return [str(path) for path in found if not path.name.startswith(_NOT_OURS)]

    def alive(self) -> list[str]:
        """The nodes that Ray believes to be alive."""
        done = self.head.run(sys.executable, "-c", _ALIVE, self.address)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def config(self, name: str, **changes: Any) -> Path:
        """A config file of a launch of this cluster, in the shared directory, with what is given changed."""
        data = {
            "name": name,
            "workload": {"entrypoint": "tests.support.tiny_workload:workload"},
            "ranks": 8,
            "parallel": {"tp": 2, "dp": 4},
            "cache_dir": str(self.cache_dir),
            "store": store_config(self.shared / name),
            # The nodes have the code: PYTHONPATH names it.
            "ray": {"address": self.address, "ship_code": False},
            **changes,
        }
        path = self.shared / f"{name}.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    def start(self, *words: str, cwd: Path | None = None) -> Running:
        """Start a command of warmrank on the head."""
        lines = self.net.base / f"command{len(self._commands)}.log"
        command = (sys.executable, "-m", "warmrank", *words)
        process = self.head.popen(*command, output=lines, environ=self.environ, cwd=cwd or self.shared)
        self._commands.append(Running(node=self.head, process=process, lines=lines))
        return self._commands[-1]

    def end_commands(self) -> None:
        """End what a test that failed has left running."""
        for running in self._commands:
            if running.process.poll() is None:
                running.send(signal.SIGKILL)
                running.process.wait()

    def warmrank(self, *words: str, cwd: Path | None = None, timeout_s: float = COMMAND_S) -> Ended:
        """Run a command of warmrank on the head to its end."""
        return self.start(*words, cwd=cwd).wait(timeout_s=timeout_s)

    def launch(self, config: Path | str, *options: str) -> Report:
        """Launch on the head, which must succeed; the report."""
        report = self.net.base / "report.json"
        ended = self.warmrank("launch", str(config), "--json", str(report), *options)
        assert ended.exit_code == 0, ended.said
        return from_json(report.read_text())

    def preseed(self, config: Path | str, *options: str) -> list[dict[str, Any]]:
        """Preseed from the head, which must succeed; what became of each node."""
        ended = self.warmrank("preseed", str(config), "--json", *options)
        assert ended.exit_code == 0, ended.said
        seeds: list[dict[str, Any]] = json.loads(ended.output)
        return seeds

    def left_over(self, *, timeout_s: float = 90.0) -> dict[str, list[str]]:
        """Processes that run and are neither Ray's own nor idle, by node, once those that end have ended."""
        with contextlib.suppress(TimeoutError):
            until(lambda: not self._foreign(), timeout_s=timeout_s, what="processes end")
        return self._foreign()

    @property
    def environ(self) -> dict[str, str]:
        """The environment of everything that runs in a node."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": PYTHONPATH,
            "HOME": str(self.net.disk / "home"),
            "TMPDIR": str(self.net.disk / "tmp"),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            **self._more_environ,
        }

    def _foreign(self) -> dict[str, list[str]]:
        found = {
            name: [
                text
                for pid, text in node.processes().items()
                if pid not in self._of_head and text and not any(mark in text for mark in _OF_RAY)
            ]
            for name, node in self.net.nodes.items()
        }
        return {name: texts for name, texts in found.items() if texts}

    def _prepared(self) -> Node:
        self._num_added += 1
        return self.net.add(f"n{self._num_added}", self._num_added)

    def _begin(self, node: Node, *options: str) -> tuple[subprocess.Popen[str], Path]:
        log = self.net.base / node.name / "ray.log"
        process = node.popen(
            *("ray", "start", "--block", "--disable-usage-stats", f"--num-cpus={self.num_cpus}"),
            *(f"--node-ip-address={node.address}", f"--temp-dir={self.net.disk / 'r'}"),
            *("--object-store-memory=100000000", "--include-log-monitor=false", *options),
            output=log,
            environ=self.environ,
            cwd=self.net.disk,
        )
        return process, log


def _await_up(process: subprocess.Popen[str], log: Path) -> None:
    def is_up() -> bool:
        assert process.poll() is None, f"ray start ended: {log.with_suffix('.err').read_text()}"
        return "--block" in log.read_text()  # once all is up it prints that it runs until it is told to end

    until(is_up, timeout_s=_RAY_START_S, what="ray start says that it is up")


@contextlib.contextmanager
def ray_nodes(count: int, *, num_cpus: int, environ: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A Ray cluster of so many nodes; nothing of it is left afterwards."""
    with network() as net:
        cluster = Cluster(net, num_cpus=num_cpus, environ=environ or {})
        cluster.add_nodes(count - 1)
        yield cluster


STORE_PORT = 9000
_START_S = 60.0


class CountingStore:
    """An S3 server that runs in a node (the switch, as a rule).

    Args:
        node: where it runs.
        log: file for what it is asked.
        environ: environment of the node's commands.
    """

    def __init__(self, node: Node, log: Path, environ: dict[str, str]) -> None:
        self._log = log
        self._hold = log.with_suffix(".hold")
        self._address = node.address
        output = log.with_suffix(".out")
        command = (sys.executable, "-m", "tests.support.s3_server", node.address, str(STORE_PORT), str(log))
        process = node.popen(*command, output=output, environ=environ)

        def answers() -> bool:
            assert process.poll() is None, output.with_suffix(".err").read_text()
            return bool(output.read_text())

        until(answers, timeout_s=_START_S, what="the S3 server answers")

    @property
    def endpoint(self) -> str:
        """Its URL for all nodes."""
        return f"http://{self._address}:{STORE_PORT}"

    @property
    def environ(self) -> dict[str, str]:
        """What processes that use it need in their environment."""
        return ENVIRONMENT

    def config(self, prefix: str) -> dict[str, Any]:
        """A config's ``store``: a place of its own in this server."""
        return {
            "path": f"s3://{BUCKET}/{prefix}",
            "options": {"endpoint": self.endpoint},
            "answer_s": PATIENT_S,
            "trust": {"policy": "off"},
        }

    @contextlib.contextmanager
    def holding(self, client: str, text: str) -> Iterator[Path]:
        """Let requests of a client wait that ask for something with a text in it.

        Yields:
            A file that is there once one waits.
        """
        self._hold.write_text(json.dumps([client, text]))
        held = self._hold.with_suffix(".held")
        try:
            yield held
        finally:
            self._hold.unlink()
            held.unlink(missing_ok=True)

    def blob_reads(self, prefix: str) -> Counter[tuple[str, str]]:
        """How often each client read each blob below a prefix, so far."""
        start = f"/{BUCKET}/{prefix}/cas/"
        asked = (json.loads(line) for line in self._log.read_text().splitlines())
        return Counter(
            (client, path) for client, method, path in asked if method == "GET" and path.startswith(start)
        )
