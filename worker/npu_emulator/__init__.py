"""An NPU that is none: the real torch_npu package's Python on memory of the CPU.

`install` stands in for the native parts of torch_npu, and nothing else: torchair, npugraph_ex and
``torch.npu`` are the real ones. Tensors lie on the CPU, and count as being on device kind ``npu``. It says
nothing of an NPU's speed, kernels or numbers, and everything of what the vendor's Python does with files,
graphs and addresses.
"""

from __future__ import annotations

from warmrank.worker.npu_emulator.cann import write_tree

__all__ = ["install", "is_installed", "write_tree"]

_STATE = {"installed": False}


def is_installed() -> bool:
    """Whether this process's NPU is emulated."""
    return _STATE["installed"]


def install(*, num_devices: int = 1) -> None:
    """Emulate an NPU in this process, from now on; once is enough.

    Raises:
        EmulatorUnavailable: the real torch_npu package is not there, or was imported before.
    """
    if _STATE["installed"]:
        return
    from warmrank.worker.npu_emulator.installing import install_into_torch

    install_into_torch(num_devices)
    _STATE["installed"] = True
