"""A Ray of two nodes whose NPUs are emulated, and launches on it; with a store, and a disk for each node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import npu_emulator
from tests.support.checkout import ROOT
from tests.support.node_artifacts import Tools
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.stores import open_store
from warmrank.worker.runtime.artifact import parse
from warmrank.worker.runtime.files import to_bytes

ENTRYPOINT = "tests.support.npu_workload:workload"
CPUS_PER_NODE = 2
_OBJECT_STORE_BYTES = 80_000_000


@contextmanager
def two_nodes(tools: Tools) -> Iterator[None]:
    """A cluster of this process's, in whose nodes the tools are CANN's."""
    import ray
    from ray.cluster_utils import Cluster

    temp_dir = tempfile.mkdtemp(prefix="wr-", dir="/tmp")  # a socket's path may have 107 bytes
    with pytest.MonkeyPatch.context() as patch:
        variables = {
            **npu_emulator.environ({"PYTHONPATH": os.environ.get("PYTHONPATH", "")}),
            **tools.environ(os.environ["PATH"]),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        for name, value in variables.items():
            patch.setenv(name, value)
        for path in variables["PYTHONPATH"].split(os.pathsep):
            patch.syspath_prepend(path)  # ranks get the paths of the driver
        node: dict[str, Any] = {
            "num_cpus": CPUS_PER_NODE,
            "resources": {"NPU": CPUS_PER_NODE},
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
        head = {**node, "include_dashboard": False, "temp_dir": temp_dir}
        # It notes its address there, whatever its directory is, and does not make the place.
        Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray").mkdir(exist_ok=True)  # noqa: S108 - Ray's own place
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**node)
            ray.init(cluster.address, namespace="warmrank", log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(temp_dir, ignore_errors=True)


class House:
    """A store, the disks of nodes, and launches from one to another."""

    def __init__(self, root: Path, tools: Tools) -> None:
        self.root, self.tools = root, tools

    def config_file(self, num_ranks: int, disk: str, **changes: Any) -> Path:
        data: dict[str, Any] = {
            "name": f"npu{num_ranks}",
            "workload": {"entrypoint": ENTRYPOINT, "arguments": {"static_kernels": True}},
            "ranks": num_ranks,
            "parallel": {"tp": 2, "dp": num_ranks // 2},
            "device": "npu",
            "cache_dir": str(self.root / disk),
            "store": store_config(self.root / "store"),
            **changes,
        }
        path = self.root / f"{disk}{num_ranks}.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    def launch(self, num_ranks: int, disk: str, *, no_compile: bool = False, **changes: Any) -> Report:
        return launch(load(self.config_file(num_ranks, disk, **changes)), no_compile=no_compile)

    def preseed(self, num_ranks: int, disk: str) -> str:
        """What ``warmrank preseed --here`` says on a new node."""
        config = self.config_file(num_ranks, disk)
        command = [sys.executable, "-m", "warmrank", "preseed", str(config), "--here"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def compiled_modules(self, disk: str, pattern: str = "*/*/*") -> list[Path]:
        return sorted((self.root / disk).glob(f"{pattern}/compiled_module*"))

    def blobs(self) -> set[str]:
        """SHA-256 of all that the store holds."""
        return {path.name for path in (self.root / "store" / "cas").glob("sha256/*/*")}

    def manifests(self, record: str) -> list[Any]:
        """Those of a launch, by rank."""
        store = open_store(load(self.config_file(2, "look")).store)  # type: ignore[arg-type]
        (found,) = [item.record for item in store.newest_launches() if record in item.name]
        return [
            store.manifest(ref.manifest_key) for ref in sorted(found.partitions, key=lambda ref: ref.rank)
        ]


def break_code(path: Path) -> None:
    """Make a whole artifact of whose code TorchAir makes nothing."""
    artifact = parse(path.read_bytes(), str(path))
    code = b"raise RuntimeError('no such kernel')\n"
    path.write_bytes(to_bytes(replace(artifact, sections={**artifact.sections, "torchair.py": code})))
