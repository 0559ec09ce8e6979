"""Installing the emulator: stand-ins, the device type, tensors' methods, operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from warmrank.worker.emulation import stand_for
from warmrank.worker.npu_emulator.device import Device
from warmrank.worker.npu_emulator.operators import define
from warmrank.worker.npu_emulator.package import package_home, stand_in, stand_in_for_extensions
from warmrank.worker.torch_private import emulated_device, facts


def install_into_torch(num_devices: int) -> None:
    """See `worker.npu_emulator.install`."""
    facts.require("emulator")
    home = package_home()
    torch_npu = stand_in(home, Device(num_devices))
    stand_in_for_extensions()
    torch_npu.npu.default_generators = (torch.default_generator,) * num_devices
    emulated_device.register("npu", torch_npu.npu)
    define(home)
    torch_npu.__dict__["__getattr__"] = _operator
    _give_methods()
    dist.Backend.register_backend("hccl", _gloo, devices=["cpu", "npu"])
    stand_for("cpu", "npu")


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """What stands in for HCCL's process groups."""
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _operator(name: str) -> Any:
    """``torch_npu.npu_rms_norm`` and the like."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(torch.ops.npu, name)


def _give_methods() -> None:
    """``tensor.npu()`` and the like, as torch_npu adds them."""
    tensor: Any = torch.Tensor
    tensor.npu = lambda self, *_, **__: self
    tensor.is_npu = property(lambda self: self.device.type == "cpu")
    module: Any = torch.nn.Module
    module.npu = lambda self, *_, **__: self
