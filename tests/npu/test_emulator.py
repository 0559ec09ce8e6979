"""The emulated NPU as users and the vendor's packages see it: ``torch.npu``, tensors, tracing, operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import npu_emulator
from tests.contract import test_device_backend as contract
from tests.contract.test_device_backend import backend, device  # noqa: F401 - its fixtures

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def npu() -> Any:
    return torch.get_device_module("npu")


def test_device_module_is_the_real_one(npu: Any) -> None:
    import torch_npu

    assert npu is torch_npu.npu
    assert Path(npu.__file__).parts[-3:] == ("torch_npu", "npu", "__init__.py")
    assert npu.is_available()
    assert npu.device_count() == 1
    assert npu.get_device_name().startswith("Ascend910")
    assert not torch.is_autocast_enabled("npu")


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


def test_operator_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="npu::npu_fast_gelu"):
        torch.ops.npu.npu_fast_gelu(torch.ones(2))


def test_process_imports_the_emulated_device_and_no_tracer_with_it() -> None:
    source = (
        "import sys, torch, torch_npu, torch_npu.npu\n"
        "names = ('torch._dynamo', 'torch._inductor', 'sympy', 'torch_npu.dynamo.torchair')\n"
        "print(torch.npu.is_available(), [name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], env=npu_emulator.environ(), capture_output=True, text=True,
        check=False, timeout=400,
    )  # fmt: skip
    assert done.stdout == "True []\n", done.stderr


# The contract of device backends, on the real ``torch.npu``; its parameters are replaced.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture
def kind() -> str:
    """Instead of the suite's parameters."""
    return "npu"
