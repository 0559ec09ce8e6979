"""The real torch_npu package with stand-ins in the places of its native parts.

``torch_npu`` and the packages below it whose ``__init__`` needs the device become empty modules with the
real package's path, so that every module in them is the real one; ``torch_npu._C`` and torchair's extension
modules are stand-ins. ``torchair`` and ``npugraph_ex`` import each other's parts by these names, so both
become importable.

Device type ``npu`` of torch has its tensors on the CPU. That relies on
``torch.utils.rename_privateuse1_backend`` and ``torch._register_device_module``, as torch_npu does; on
kernels of dispatch key ``PrivateUse1`` being asked for a new tensor on such a device; and on
``FakeTensor.__new__``
taking the device that a traced call asked for.

Operators of namespace ``npu`` have torch_npu's schemas, from the list that lies in the package, and its own
meta registrations; some have kernels. One without a kernel is refused by torch when it runs, by its name.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from warmrank.worker.settings import stand_for

from .device import Device
from .kernels import KERNELS
from .native import extension_module, native_module, nothing

# Their own __init__ imports what only a device has, or replaces functions of torch.
_EMPTY = ("torch_npu", "torch_npu.utils", "torch_npu.distributed", "torch_npu._init", "torch_npu.op_plugin")
_EXTENSIONS = ("_torchair", "_abi_compat_ge_apis", "_npu_graph_executor", "_npu_utils")
_FORMAT_ND = 2


def stand_in(home: Path, device: Device) -> ModuleType:
    """Put the stand-ins in their places; ``torch_npu.npu`` imports as the real module from then on."""
    for name in _EMPTY:
        module: Any = ModuleType(name)
        sys.modules[name] = module
        module.__path__ = [str(home.joinpath(*name.split(".")[1:]))]
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    top: Any = sys.modules["torch_npu"]
    top.__file__ = str(home / "__init__.py")
    top.__spec__ = PathFinder.find_spec("torch_npu")
    native = native_module(device)
    vars(top)["_C"] = sys.modules[native.__name__] = native
    children = [inner for inner in vars(native).values() if isinstance(inner, ModuleType)]
    sys.modules.update({inner.__name__: inner for inner in children})
    top.get_npu_format = lambda _: _FORMAT_ND
    top._autoload = nothing  # torch calls it where its autoload is on
    top.__version__ = importlib.import_module("torch_npu.version").__version__
    top.npu = importlib.import_module("torch_npu.npu")
    return top  # type: ignore[no-any-return]


def stand_in_for_extensions() -> None:
    """Make ``torchair`` and ``npugraph_ex`` importable by these names, when used, as torch_npu does it."""
    dynamo = vars(importlib.import_module("torch_npu.dynamo"))
    dynamo["_LazyException"].__call__ = _raise_anew
    dynamo["_install_lazy_torchair"]()
    sys.modules["npugraph_ex"] = dynamo["_LazyNpuGraphEx"]("npugraph_ex")
    for extension in _EXTENSIONS:
        name = f"torchair.core.{extension}"
        sys.modules[name] = extension_module(name)


def _raise_anew(lazy: Any, *_: Any) -> NoReturn:
    """Instead of the error that an import ended with, whose traceback grows each time that it is raised."""
    error = vars(lazy)["_e"]
    msg = f"torch_npu's compilers did not import: {type(error).__name__}: {error}"
    raise ImportError(msg)


def install_into_torch(home: Path) -> None:
    """See `tests.npu_emulator.install`; ``home`` is where the real package lies."""
    torch_npu = stand_in(home, Device())
    stand_in_for_extensions()
    torch_npu.npu.default_generators = (torch.default_generator,)
    register("npu", torch_npu.npu)
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


_LIST = Path("csrc", "aten", "npu_native_functions_by_codegen.yaml")
_METAS = ("_meta_registrations", "_fake_registrations")


def schemas_in(text: str) -> list[str]:
    """The operators that torch_npu adds, from its list; each once."""
    custom = text.partition("\ncustom:")[2]
    body = re.split(r"^\w+:", custom, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^(?:- |  )func: ((\w+(?:\.\w+)?)\(.*)$", body, re.MULTILINE)
    return list({name: schema for schema, name in found}.values())


def define(home: Path) -> None:
    """Define the operators of the package that lies in ``home``."""
    schemas = schemas_in((home / _LIST).read_text("utf-8"))
    define_operators("npu", schemas)
    implement("npu", KERNELS, "CPU")
    for name in _METAS:
        importlib.import_module(f"torch_npu.op_plugin.meta.{name}")


_LIBRARIES: list[Any] = []  # torch drops what they register when they go


def register(name: str, module: ModuleType) -> None:
    """Make ``name`` a device type, with its module as ``torch.<name>``; new tensors on it lie on the CPU."""
    torch.utils.backend_registration.rename_privateuse1_backend(name)
    torch._register_device_module(name, module)
    torch._C._acc.register_python_privateuseone_hook(_HOOKS)
    torch._C._acc.register_python_privateuseone_device_guard(_Guard())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    _LIBRARIES.append(library)
    if hasattr(torch._C, "_accelerator_getDefaultGenerator"):  # torch_npu asks it from torch 2.14 on
        torch._C._accelerator_getDefaultGenerator = lambda _index: torch.default_generator
    _trace_on_the_cpu(name)


def define_operators(namespace: str, schemas: list[str]) -> None:
    """Define operators, but for those whose schemas torch does not take."""
    library = torch.library.Library(namespace, "FRAGMENT")
    for schema in schemas:
        with contextlib.suppress(RuntimeError):
            library.define(schema)
    _LIBRARIES.append(library)


def implement(namespace: str, kernels: dict[str, Callable[..., Any]], key: str) -> None:
    """Register kernels for a dispatch key."""
    library = torch.library.Library(namespace, "IMPL")
    for name, kernel in kernels.items():
        library.impl(name, kernel, key)
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
