"""Static kernels and graphs of GE: kept for their artifact, and found by TorchAir's loader.

Packages, graphs and CANN are made up; TorchAir's functions are the real ones, of torchair and npugraph_ex.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from tests import npu_emulator
from tests.support import node_artifacts
from tests.support.offline_ranks import rank_of, small
from warmrank.inference import cache_compile
from warmrank.orchestrator.build.driver import BuildOptions, build
from warmrank.orchestrator.build.plan import BuildReport, target_here
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.engines.torchair_vendor import vendor_for
from warmrank.worker.keys import request as fingerprint
from warmrank.worker.node_caches import PACKAGES, pack, unpack
from warmrank.worker.runtime.function import CachedFunction

X = torch.arange(8.0).reshape(2, 4)
GRAPH, INDEX = "graph_1_20260131.om", "graph_1.idx"
PACKAGE = "aclnn_static_shape_kernel_outputs/ts1_outputs/static_kernel_1_1.run"
ND, FRACTAL_NZ = 2, 29


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def one(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


def loaded(cache_dir: Path, name: str = "one", *, frozen: bool = False) -> CachedFunction:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    config.experimental_config.frozen_parameter = frozen
    function = cache_compile(getattr(Model(), name), config=config, cache_dir=str(cache_dir))
    function.ensure((X,), {})
    return function


def called(cache_dir: Path, name: str = "one", *, frozen: bool = False) -> CachedFunction:
    function = loaded(cache_dir, name, frozen=frozen)
    assert torch.equal(function(X), getattr(Model(), name)(X))
    return function


def private(function: CachedFunction) -> Path:
    """The directory that TorchAir was told."""
    directory: Path = function.variants[0].runner._capturing._made.private  # type: ignore[attr-defined]
    return directory


def left_by_tools(function: CachedFunction, text: str = "") -> None:
    """As GE and op_compiler leave them at the first call, then handed over."""
    for name in (GRAPH, INDEX, PACKAGE):
        path = private(function) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or name)
        path.chmod(0o640)
    function.variants[0].runner.hand_over()


def files(function: CachedFunction) -> set[str]:
    root = private(function)
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return found - {"compiled_module"}


@pytest.mark.usefixtures("no_grad")
def test_next_process_finds_what_was_made_where_it_was_left(tmp_path: Path) -> None:
    left_by_tools(called(tmp_path))
    again = called(tmp_path)
    assert again.last_result is not None
    assert again.last_result.outcome == "loaded"
    assert files(again) == {GRAPH, INDEX, PACKAGE}
    assert (private(again) / GRAPH).read_text() == GRAPH
    assert (private(again) / PACKAGE).stat().st_mode & 0o777 == 0o700  # TorchAir starts it


@pytest.mark.usefixtures("no_grad")
def test_another_function_and_a_changed_one_are_not_offered_it(tmp_path, monkeypatch):
    left_by_tools(called(tmp_path))
    assert files(called(tmp_path, "other")) == set()
    monkeypatch.setattr(Model, "one", Model.other)
    assert files(called(tmp_path)) == set()


@pytest.mark.usefixtures("no_grad")
def test_graph_that_may_hold_frozen_parameters_is_kept_for_nobody(tmp_path: Path) -> None:
    left_by_tools(called(tmp_path, frozen=True))
    assert files(called(tmp_path, frozen=True)) == {PACKAGE}


@pytest.mark.usefixtures("no_grad")
def test_graph_engine_is_pointed_to_the_private_directory(tmp_path, monkeypatch):
    """With as much of GE as TorchAir needs to write its code and to load it; nothing can be run."""
    vendor_for("max-autotune")
    native = sys.modules["torchair.core._torchair"]
    monkeypatch.setattr(native, "InitializeGraphEngine", lambda _: None, raising=False)
    monkeypatch.setattr(importlib.import_module("torchair.core._backend"), "TorchNpuGraph", mock.MagicMock)
    config = CompilerConfig()
    config.mode = "max-autotune"
    for _ in range(2):
        function = cache_compile(Model().one, config=config, cache_dir=str(tmp_path), ge_cache=True)
        function.ensure((X,), {})
    call = function.variants[0].runner._capturing._call  # type: ignore[attr-defined]
    options = inspect.getclosurevars(call).nonlocals["ge_kernel"].__globals__["local_compile_options"]
    assert options["ge.graph_compiler_cache_dir"] == str(private(function).resolve())


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give all parameters another storage format, as ``torch_npu.npu_format_cast_`` does."""
    package = importlib.import_module("torch_npu")

    def to(number: int) -> None:
        monkeypatch.setattr(
            package, "get_npu_format", lambda found: number if isinstance(found, nn.Parameter) else ND
        )

    return to


@pytest.mark.usefixtures("no_grad")
def test_each_format_keeps_its_own(tmp_path: Path, cast: Callable[[int], None]) -> None:
    left_by_tools(called(tmp_path), "for ND")
    cast(FRACTAL_NZ)
    assert files(called(tmp_path)) == set()
    left_by_tools(called(tmp_path), "for NZ")
    cast(ND)
    function = loaded(tmp_path)
    cast(FRACTAL_NZ)  # between load and first call
    function(X)
    assert (private(function) / GRAPH).read_text() == "for NZ"
    cast(ND)
    assert (private(called(tmp_path)) / GRAPH).read_text() == "for ND"


@pytest.mark.usefixtures("no_grad")
def test_nothing_that_was_made_for_two_formats_is_kept(tmp_path, cast, caplog):
    function = called(tmp_path)
    cast(FRACTAL_NZ)
    left_by_tools(function)
    assert "storage format" in caplog.text
    assert files(called(tmp_path)) == set()


VENDORS = {
    "torchair": ("reduce-overhead", "aclnn_static_shape_kernel_outputs", ("0",)),
    "npugraph_ex": ("npugraph_ex", "static_kernel_compile_outputs", (False, 0)),
}
"""Vendor -> mode, where it looks, and the deterministic switches as its code has them."""
CANN = "9.0.0"


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("vendor", sorted(VENDORS))
def test_torchair_installs_packages_that_were_brought_in_into_a_cann_without_them(
    vendor, tmp_path, monkeypatch
):
    mode, directory, switches = VENDORS[vendor]
    home, kept = tmp_path / "ascend", tmp_path / "node_caches/static_kernels/a/f.tar"
    home.mkdir()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    vendor_for(mode)
    loader = importlib.import_module(f"{vendor}._acl_concrete_graph.static_kernel")
    monkeypatch.setattr("torch_npu.npu.utils.get_cann_version", lambda *_, **__: CANN)

    def new_process(name: str) -> str:
        monkeypatch.setattr(loader, "_installed_run_pkgs", set())
        monkeypatch.setattr(loader, "_uninstall_paths", [])
        (tmp_path / name).mkdir(mode=0o700)
        unpack(kept, tmp_path / name)
        assert loader._check_for_load_run_pkg(CANN, str(tmp_path / name), *switches)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning. If the process exits abnormally")
            status: str = loader._find_and_install_run_pkgs(str(tmp_path / name)).value
        return status

    assert new_process("none") == "need_compile"
    package = Path(directory, "ts20260101000000_pid1_outputs", node_artifacts.PACKAGE)
    node_artifacts.write(tmp_path / "made" / package, node_artifacts.package_bytes())
    pack(tmp_path / "made", kept, PACKAGES)
    assert new_process("first") == "installed"
    assert list(home.rglob("kernel.o"))
    shutil.rmtree(home / "opp")
    assert new_process("second") == "installed"
    assert list(home.rglob("kernel.o"))
    loader.uninstall_static_kernel()  # as at the end of its process
    assert list(home.rglob("kernel.o")) == []


NUM_RANKS = 8


@pytest.fixture(scope="module")
def machine_with_npus() -> Iterator[None]:
    """An offline build is for machines with an accelerator; the emulated one has none in its fingerprint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmrank.worker.ascend.soc_of", lambda _: "Ascend910B2")
        patch.setattr("warmrank.worker.settings.AscendPlaces.hold_nothing", lambda _: False)
        fingerprint._components.cache_clear()
        yield
    fingerprint._components.cache_clear()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    root = tmp_path_factory.mktemp("offline_npu")
    return parse(
        {
            "workload": {
                "entrypoint": "tests.support.offline_ranks:small",
                "arguments": {"method": "summed"},
            },
            "ranks": NUM_RANKS,
            "parallel": {"tp": 2, "dp": NUM_RANKS // 2},
            "device": "npu",
            "cache_dir": str(root / "cache"),
        }
    )


@pytest.fixture(scope="module")
def report(config: Config, machine_with_npus: None) -> BuildReport:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in npu_emulator.environ().items():
            patch.setenv(name, value)
        for place in npu_emulator.environ({})["PYTHONPATH"].split(":"):
            patch.syspath_prepend(place)
        patch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")  # as where CANN is
        return build(config, BuildOptions(target=target_here(), num_jobs=2))


def test_one_compile_makes_the_partitions_of_all_ranks(report, config):
    assert [(item.outcome, item.num_ranks) for item in report.classes] == [("compiled", NUM_RANKS)]
    assert len(list(config.cache_dir.rglob("compiled_module"))) == NUM_RANKS


@pytest.mark.parametrize("rank", [1, 6])
def test_rank_of_a_launch_loads_it_and_computes_what_eager_does(rank, report, config):
    with rank_of(rank, NUM_RANKS, config.cache_dir, device_kind="npu", no_compile=False) as context:
        (call,) = small(context, method="summed").calls
        assert call.function.engine().name == "torchair"
        expected = call.function.module.summed(*call.args)  # type: ignore[operator] # a method of `Small`
        assert torch.equal(call.function(*call.args), expected)
        found = call.function.last_result
        assert found is not None
        assert (found.outcome, found.digest) == ("loaded", report.classes[0].digest)


def test_artifact_has_the_bytes_that_a_rank_of_a_launch_compiles(report, tmp_path):
    with rank_of(3, NUM_RANKS, tmp_path, device_kind="npu", no_compile=False) as context:
        (call,) = small(context, method="summed").calls
        compiled = call.function.compile(call.args, call.kwargs, reason="")
        assert compiled.stored.sha256 == report.classes[0].digest
