"""TorchAir's own loader finds and runs the packages that are brought in beside ``compiled_module``.

The functions are the real ones, of torchair and npugraph_ex; packages and CANN are made up. So nothing of
this package installs any: a load whose CANN lacks the kernels gets them from TorchAir.
"""

from __future__ import annotations

import importlib
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.node_artifacts import PACKAGE, package_bytes, write
from warmrank.worker.engine_files import PACKAGES, bring_in, hand_over
from warmrank.worker.engines.torchair_vendor import vendor_for

DIRECTORIES = {
    "torchair": "aclnn_static_shape_kernel_outputs",
    "npugraph_ex": "static_kernel_compile_outputs",
}
SWITCHES: dict[str, tuple[Any, ...]] = {"torchair": ("0",), "npugraph_ex": (False, 0)}
"""Deterministic algorithms, and their level, as TorchAir's code has them."""
MODES = {"torchair": "reduce-overhead", "npugraph_ex": "npugraph_ex"}
PREFIX, CANN = "artifact/formats", "9.0.0"


class Node:
    """A node's CANN and its cache directory."""

    def __init__(self, root: Path) -> None:
        self.home = root / "ascend" / "latest"
        self.home.mkdir(parents=True)
        self.node_cache = root / "node_caches/static_kernels"

    @property
    def kernels(self) -> list[str]:
        """Packages whose kernels lie in CANN."""
        found = (self.home / "opp/static_kernel/ai_core").glob("*/kernel.o")
        return [path.parent.name for path in found]

    @property
    def num_runs(self) -> int:
        log = self.home / "runs"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    found = Node(tmp_path)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(found.home))
    return found


@pytest.fixture(params=sorted(DIRECTORIES))
def vendor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def loader_of(vendor: str, patch: pytest.MonkeyPatch) -> Any:
    """TorchAir's module, as a process that has just begun has it."""
    vendor_for(MODES[vendor])
    module = importlib.import_module(f"{vendor}._acl_concrete_graph.static_kernel")
    patch.setattr(module, "_installed_run_pkgs", set())
    patch.setattr(module, "_uninstall_paths", [])
    return module


def compiled_elsewhere(node: Node, vendor: str, tmp_path: Path) -> None:
    """Another process made a package, and handed it over; it may have come through the store since."""
    made = tmp_path / "made" / DIRECTORIES[vendor] / "ts20260101000000_pid1_outputs" / PACKAGE
    write(made, package_bytes())
    assert hand_over(tmp_path / "made", node.node_cache, PREFIX, PACKAGES)


def new_process(node: Node, vendor: str, private: Path, patch: pytest.MonkeyPatch) -> str:
    """A load with an empty private directory; what TorchAir says of the packages there."""
    module = loader_of(vendor, patch)
    private.mkdir(mode=0o700)
    bring_in(node.node_cache, PREFIX, private, PACKAGES)
    patch.setattr("torch_npu.npu.utils.get_cann_version", lambda *_, **__: CANN)
    assert module._check_for_load_run_pkg(CANN, str(private), *SWITCHES[vendor])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning. If the process exits abnormally")
        status: str = module._find_and_install_run_pkgs(str(private)).value
    return status


def test_package_that_was_brought_in_is_installed_by_torchair(
    node: Node, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_elsewhere(node, vendor, tmp_path)
    assert node.kernels == []  # a new node, or a CANN that was installed again
    assert new_process(node, vendor, tmp_path / "first", monkeypatch) == "installed"
    assert node.kernels == [PACKAGE.removesuffix(".run")]


def test_package_is_installed_again_by_the_next_process_once_the_tree_was_emptied(
    node: Node, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_elsewhere(node, vendor, tmp_path)
    new_process(node, vendor, tmp_path / "first", monkeypatch)
    shutil.rmtree(node.home / "opp")
    assert new_process(node, vendor, tmp_path / "second", monkeypatch) == "installed"
    assert (node.kernels, node.num_runs) == ([PACKAGE.removesuffix(".run")], 2)


def test_torchair_takes_its_kernels_out_of_cann_and_the_package_stays(
    node: Node, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_elsewhere(node, vendor, tmp_path)
    new_process(node, vendor, tmp_path / "first", monkeypatch)
    loader_end = importlib.import_module(f"{vendor}._acl_concrete_graph.static_kernel")
    loader_end.uninstall_static_kernel()  # as at the end of its process
    assert node.kernels == []
    assert new_process(node, vendor, tmp_path / "second", monkeypatch) == "installed"
    assert node.kernels != []


def test_without_a_package_torchair_compiles(
    node: Node, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert new_process(node, vendor, tmp_path / "first", monkeypatch) == "need_compile"
    assert os.listdir(tmp_path / "first") == []  # noqa: PTH208 - names are all that matters


def test_package_that_cannot_be_run_would_not_be_installed(
    node: Node, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchAir runs the file itself, so `bring_in` has to make it a program."""
    compiled_elsewhere(node, vendor, tmp_path)
    private = tmp_path / "private"
    bring_in(node.node_cache, PREFIX, private, PACKAGES)
    (package,) = private.rglob("*.run")
    package.chmod(0o600)
    module = loader_of(vendor, monkeypatch)
    with pytest.raises(PermissionError):
        module._find_and_install_run_pkgs(str(private))


def test_torchair_installs_nothing_for_another_cann_or_switch(
    node: Node, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are other artifacts here: CANN is in the key, and the switches are conditions."""
    compiled_elsewhere(node, vendor, tmp_path)
    new_process(node, vendor, tmp_path / "first", monkeypatch)
    module = loader_of(vendor, monkeypatch)
    private = str(tmp_path / "first")
    with pytest.warns(UserWarning, match="CANN version"):
        assert not module._check_for_load_run_pkg("8.5.0", private, *SWITCHES[vendor])
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.warns(UserWarning, match="deterministic"):
            assert not module._check_for_load_run_pkg(CANN, private, *SWITCHES[vendor])
    finally:
        torch.use_deterministic_algorithms(False)
