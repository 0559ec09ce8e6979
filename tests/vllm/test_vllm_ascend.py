"""The real `AscendCompiler` of vllm-ascend, with the real npugraph_ex on an emulated NPU, through a store.

WARMRANK_VLLM_ASCEND names a directory with the packages ``vllm_ascend`` and ``torch_npu``; by default the one
that `make test-vllm` fills.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import npu_emulator

HERE = Path(__file__).parent
SOURCES = Path(os.environ.get("WARMRANK_VLLM_ASCEND") or Path(sys.prefix, "ascend"))
PACKAGES = ("vllm_ascend", "torch_npu")
MISSING = [name for name in PACKAGES if not (SOURCES / name).is_dir()]

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM here: make test-vllm"),
    pytest.mark.skipif(bool(MISSING), reason=f"{SOURCES}, or WARMRANK_VLLM_ASCEND, has no {MISSING}"),
]


@dataclass
class Node:
    """A machine with its own HOME, cache and place of vllm-ascend."""

    path: Path
    store: Path | str = ""

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    def start(self, **variables: str) -> dict[str, Any]:
        """Run one process; returns its figures, and the plugin's outcomes by the rank's directory."""
        packages, out = self.path / "packages", self.path / "out.json"
        packages.mkdir(parents=True, exist_ok=True)
        # Not vllm-ascend's entry points, which would ask for its platform.
        for place in (*(SOURCES / name for name in PACKAGES), *(HERE / "gpu_path").glob("vllm-*.dist-info")):
            (packages / place.name).unlink(missing_ok=True)
            (packages / place.name).symlink_to(place)
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(packages),
            "HOME": str(self.path),
            "VLLM_CACHE_ROOT": str(self.cache),
            "VLLM_USE_MEGA_AOT_ARTIFACT": "0",  # as with the torch of vllm-ascend's releases
            "OMP_NUM_THREADS": "1",
            "WARMRANK_STORE": str(self.store),
            **variables,
        }
        command = [sys.executable, str(HERE / "ascend_child.py"), str(out)]
        done = subprocess.run(
            command,
            env=npu_emulator.environ(environ),
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        figures: dict[str, Any] = json.loads(out.read_text())
        notes = self.cache.glob("torch_compile_cache/*/.state.warmrank/*.json")
        figures["outcomes"] = {one["rank"]: one for one in (json.loads(path.read_text()) for path in notes)}
        return figures

    def graphs(self) -> dict[str, str]:
        found = self.cache.glob("torch_compile_cache/*/rank_0_0/backbone/artifact_*")
        return {path.name: path.read_text() for path in found}

    def index(self) -> Path:
        (found,) = self.cache.glob("torch_compile_cache/*/rank_0_0/backbone/vllm_compile_cache.py")
        return found


GRAPHS = "rank_0_0/backbone"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def cold(nodes: Path) -> tuple[Node, dict[str, Any]]:
    node = Node(nodes / "first", nodes / "store")
    return node, node.start()


def test_cold_start_compiles_and_publishes_graphs(cold):
    node, figures = cold
    assert figures["num_compiled"] == len(node.graphs()) == 1
    outcome = figures["outcomes"][GRAPHS]
    assert (outcome["outcome"], outcome["why"]) == ("compiled", "there is no store yet")
    assert "published 3 files" in outcome["published"]  # text, index and the plugin's note


def test_warm_start_in_place_compiles_nothing(cold):
    node, _ = cold
    figures = node.start()
    assert (figures["num_compiled"], figures["num_aot_loaded"]) == (0, 1)
    assert figures["outcomes"][GRAPHS]["source"] == "disk"


def test_new_node_with_other_paths_compiles_nothing(cold, nodes):
    first, _ = cold
    node = Node(nodes / "elsewhere" / "second", nodes / "store")
    figures = node.start()
    assert (figures["num_compiled"], figures["num_aot_loaded"]) == (0, 1)
    assert {one["source"] for one in figures["outcomes"].values()} == {"store"}
    assert node.graphs() == first.graphs()
    assert str(first.path) not in node.index().read_text()


def test_other_custom_operators_are_compiled_anew(cold, nodes):
    """vllm-ascend 15188: without the plugin its cache gives the graph of the other operators."""
    stale = Node(nodes / "without the plugin")
    stale.start()
    assert stale.start(WITH_CUSTOM_OPERATORS="1")["num_compiled"] == 0
    stale.store = nodes / "another store"
    figures = stale.start(WITH_CUSTOM_OPERATORS="1")
    assert figures["num_compiled"] == 1
    assert "unknown custom operators" in figures["outcomes"][GRAPHS]["why"]
    node = Node(nodes / "switched", nodes / "store")
    node.start()
    figures = node.start(WITH_CUSTOM_OPERATORS="1")
    assert figures["num_compiled"] == 1
    assert figures["num_aot_loaded"] == 0
    for outcome in figures["outcomes"].values():
        assert "custom operators off -> on" in outcome["why"]
    (text,) = node.graphs().values()
    assert "npu_rms_norm" in text


def test_unsigned_graphs_are_never_laid_out_where_signatures_are_required(cold, nodes):
    figures = Node(nodes / "strict", nodes / "store").start(WARMRANK_TRUST="require")
    assert figures["num_compiled"] == 1
    assert "unsigned" in figures["outcomes"][GRAPHS]["why"]
