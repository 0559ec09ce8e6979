"""A device type of torch whose tensors lie on the CPU.

Relies on ``torch.utils.rename_privateuse1_backend`` and ``torch._register_device_module``, as torch_npu
does; on kernels of dispatch key ``PrivateUse1`` being asked for a new tensor on such a device; and on
``FakeTensor.__new__`` taking the device that a traced call asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

FACTS = {
    "torch._subclasses.fake_tensor:FakeTensor": "__new__(cls, fake_mode, elem, device)",
}

_LIBRARIES: list[Any] = []  # torch drops what they register when they go


def register(name: str, module: ModuleType) -> None:
    """Make ``name`` a device type, with its module as ``torch.<name>``; new tensors on it lie on the CPU."""
    torch.utils.backend_registration.rename_privateuse1_backend(name)
    torch._register_device_module(name, module)  # type: ignore[no-untyped-call]
    torch._C._acc.register_python_privateuseone_hook(_HOOKS)
    torch._C._acc.register_python_privateuseone_device_guard(_Guard())
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("empty.memory_format", _empty, "PrivateUse1")  # type: ignore[no-untyped-call]
    library.impl("empty_strided", _empty_strided, "PrivateUse1")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    if hasattr(torch._C, "_accelerator_getDefaultGenerator"):  # torch_npu asks it from torch 2.14 on
        torch._C._accelerator_getDefaultGenerator = lambda _index: torch.default_generator
    _trace_on_the_cpu(name)


def define(namespace: str, schemas: list[str]) -> list[str]:
    """Define operators; which schemas torch does not take."""
    library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    refused = []
    for schema in schemas:
        try:
            library.define(schema)  # type: ignore[no-untyped-call]
        except RuntimeError:
            refused.append(schema)
    _LIBRARIES.append(library)
    return refused


def implement(namespace: str, kernels: dict[str, Callable[..., Any]], key: str) -> None:
    """Register kernels for a dispatch key."""
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    for name, kernel in kernels.items():
        library.impl(name, kernel, key)  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)


class _Guard(torch._C._acc.DeviceGuard):
    """Changes to another device of the type change nothing."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """Torch's own question (``dist.barrier`` asks it) which memory is an accelerator's: none."""

    def is_available(self) -> bool:
        return False

    def has_primary_context(self, dev_id: int) -> bool:
        del dev_id
        return False

    def is_built(self) -> bool:
        return True


_HOOKS = _Hooks()  # torch does not keep it alive


def _empty(size: Any, **options: Any) -> torch.Tensor:
    options.update(device="cpu", pin_memory=False)
    return torch.empty(size, **options)


def _empty_strided(size: Any, stride: Any, **options: Any) -> torch.Tensor:
    options.update(device="cpu", pin_memory=False)
    return torch.empty_strided(size, stride, **options)


def _trace_on_the_cpu(name: str) -> None:
    """Fake tensors say where the real ones will lie."""
    from torch._subclasses.fake_tensor import FakeTensor

    original = FakeTensor.__new__

    def on_the_cpu(cls: Any, fake_mode: Any, elem: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        device = torch.device(device)
        device = torch.device("cpu") if device.type == name else device
        return original(cls, fake_mode, elem, device, *args, **kwargs)

    FakeTensor.__new__ = staticmethod(on_the_cpu)  # type: ignore[method-assign,assignment]
