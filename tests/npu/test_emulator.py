"""The emulated NPU as users and the vendor's packages see it: ``torch.npu``, tensors, tracing, operators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from warmrank.worker import npu_emulator
from warmrank.worker.emulation import kind_of


@pytest.fixture
def npu() -> Any:
    return torch.get_device_module("npu")


def test_installing_twice_changes_nothing(npu: Any) -> None:
    npu_emulator.install()
    assert npu_emulator.is_installed()
    assert torch.get_device_module("npu") is npu
    assert kind_of("cpu") == "npu"


def test_device_module_is_the_real_one(npu: Any) -> None:
    import torch_npu  # type: ignore[import-not-found]

    assert npu is torch_npu.npu
    assert Path(npu.__file__).parts[-3:] == ("torch_npu", "npu", "__init__.py")
    assert npu.is_available()
    assert npu.device_count() == 1
    assert npu.get_device_name().startswith("Ascend910")
    assert not torch.is_autocast_enabled("npu")


def test_streams_are_told_apart_and_put_back(npu: Any) -> None:
    stream, default = npu.Stream(), npu.current_stream()
    with npu.stream(stream):
        assert npu.current_stream() == stream
        stream.wait_event(default.record_event())
    assert npu.current_stream() == default == npu.default_stream()
    assert stream != default


def test_limit_of_a_stream_is_its_own(npu: Any) -> None:
    stream, other = npu.Stream(), npu.Stream()
    npu.set_stream_limit(stream, 3, 4)
    assert npu.get_stream_limit(stream) == {"cube_core_num": 3, "vector_core_num": 4}
    assert npu.get_stream_limit(other)["cube_core_num"] > 3
    npu.reset_stream_limit(stream)
    assert npu.get_stream_limit(stream) == npu.get_stream_limit(other)


def test_graph_of_the_real_package_records_and_replays(npu: Any) -> None:
    x, graph = torch.zeros(3), npu.NPUGraph()
    with torch.no_grad(), npu.graph(graph, pool=npu.graph_pool_handle()):
        assert npu.is_current_stream_capturing()
        y = x.add_(1) * 2
    assert x.tolist() == [0.0] * 3
    graph.replay()
    graph.replay()
    assert y.tolist() == [4.0] * 3


@pytest.mark.parametrize("wait", ["synchronize", "current_stream", "event"])
def test_waiting_breaks_a_capture(npu: Any, wait: str) -> None:
    def waits() -> None:
        if wait == "synchronize":
            npu.synchronize()
        elif wait == "current_stream":
            npu.current_stream().synchronize()
        else:
            npu.Event().query()

    graph = npu.NPUGraph()
    before = npu.current_stream()
    with npu.stream(npu.Stream()):
        graph.capture_begin(pool=npu.graph_pool_handle())
        with pytest.raises(RuntimeError, match="not permitted"):
            waits()
        with pytest.raises(RuntimeError, match="previous error"):
            graph.capture_end()
    assert npu.current_stream() == before
    npu.synchronize()


def test_memory_of_a_pool_shows_in_snapshot_and_statistics(npu: Any) -> None:
    pool, graph = npu.graph_pool_handle(), npu.NPUGraph()
    before = npu.memory_stats()["allocated_bytes.all.current"]
    with npu.graph(graph, pool=pool):
        held = torch.ones(1024)
    (segment,) = npu.memory_snapshot(pool)
    assert segment["address"] <= held.data_ptr() < segment["address"] + segment["total_size"]
    assert segment["segment_pool_id"] == pool
    assert npu.memory_stats()["allocated_bytes.all.current"] - before == 4096


def test_random_state_is_that_of_the_default_generator(npu: Any) -> None:
    torch.manual_seed(3)
    state = npu.get_rng_state(0)
    first = torch.rand(2)
    npu.set_rng_state(state, 0)
    assert torch.equal(torch.rand(2), first)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="npu"),
        lambda: torch.ones(2, device="npu:0"),
        lambda: torch.tensor([1.0, 2.0], device="npu"),
        lambda: torch.arange(2, device=torch.device("npu")),
        lambda: torch.randn(2, device="npu"),
        lambda: torch.zeros(2).to("npu"),
        lambda: torch.zeros(2).npu(),  # type: ignore[attr-defined]
        lambda: torch.nn.Linear(2, 2).to("npu").weight,
        lambda: torch.nn.Linear(2, 2, device="npu").weight,
    ],
    ids=["empty", "ones", "tensor", "arange", "randn", "to", "npu", "module", "factory"],
)
def test_tensor_on_the_device_lies_on_the_cpu(make: Any) -> None:
    made = make()
    assert made.device == torch.device("cpu")
    assert made.is_npu


def test_default_device_may_be_the_emulated_one() -> None:
    with torch.device("npu"):
        assert torch.zeros(2).device == torch.device("cpu")


def test_traced_code_may_name_the_device() -> None:
    seen = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.append(module)
        return module.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3, device="npu") + torch.zeros(3).to("npu")

    x = torch.rand(3)
    assert torch.equal(torch.compile(function, backend=backend, fullgraph=True)(x), function(x))
    assert len(seen) == 1


def test_process_groups_of_the_devices_backend_work(tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("hccl", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [1.0, 1.0]
        assert dist.get_backend() == "hccl"
    finally:
        dist.destroy_process_group()


def test_operators_have_the_packages_schemas_and_results() -> None:
    x, gamma = torch.empty(2, 8, device="meta"), torch.empty(8, device="meta")
    y, rstd = torch.ops.npu.npu_rms_norm(x, gamma)
    assert (y.shape, rstd.shape) == ((2, 8), (2, 1))


def test_operator_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="npu::npu_fast_gelu"):
        torch.ops.npu.npu_fast_gelu(torch.ones(2))


def test_version_of_cann_comes_from_its_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_npu.npu import utils  # type: ignore[import-not-found]

    monkeypatch.setenv("ASCEND_HOME_PATH", str(npu_emulator.write_tree(tmp_path, version="8.1.3")))
    assert utils.get_cann_version() == "8.1.3"


def test_script_runs_on_the_emulated_device_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, torch, torch_npu\nprint(torch.npu.is_available(), sys.argv[1:])\n")
    command = [sys.executable, "-m", "warmrank.worker.npu_emulator", str(script), "a", "b"]
    environ = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=400)
    assert done.stdout == "True ['a', 'b']\n", done.stderr


LOGGED = """
from warmrank.worker import npu_emulator
npu_emulator.install()
import sys, torch
from warmrank import CompilerConfig
from warmrank.inference import cache_compile

class Model(torch.nn.Module):
    def adds(self, x):
        return x + 1

config = CompilerConfig()
config.mode = sys.argv[1]
print(cache_compile(Model().adds, config=config)(torch.zeros(2)).tolist())
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mode", "package"), [("reduce-overhead", "torchair"), ("npugraph_ex", "npugraph_ex")]
)
def test_compiles_can_be_debugged(mode: str, package: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOGGED)
    environ = {**os.environ, "TORCH_COMPILE_DEBUG": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, mode],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert (done.returncode, "[1.0, 1.0]" in done.stdout) == (0, True), done.stderr
    assert package in {path.parent.name for path in tmp_path.rglob("debug.log")}


def test_installing_imports_no_tracer() -> None:
    source = (
        "import sys\nfrom worker import npu_emulator\nnpu_emulator.install()\n"
        "names = ('torch._dynamo', 'torch._inductor', 'sympy', 'torch_npu.dynamo.torchair')\n"
        "print([name for name in names if name in sys.modules])"
    )
    environ = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environ, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.stdout == "[]\n", done.stderr
