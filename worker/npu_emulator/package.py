"""The real torch_npu package with stand-ins in the places of its native parts.

``torch_npu`` and the packages below it whose ``__init__`` needs the device become empty modules with the
real package's path, so that every module in them is the real one; ``torch_npu._C`` and torchair's extension
modules are stand-ins. ``torchair`` and ``npugraph_ex`` import each other's parts by these names, so both
become importable.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from warmrank.worker.errors import EmulatorUnavailable
from warmrank.worker.npu_emulator.device import Device
from warmrank.worker.npu_emulator.native import extension_module, native_module

# Their own __init__ imports what only a device has, or replaces functions of torch.
_EMPTY = ("torch_npu", "torch_npu.utils", "torch_npu.distributed", "torch_npu._init", "torch_npu.op_plugin")
_EXTENSIONS = ("_torchair", "_abi_compat_ge_apis", "_npu_graph_executor", "_npu_utils")
_FORMAT_ND = 2


def package_home() -> Path:
    """Where the real torch_npu lies.

    Raises:
        EmulatorUnavailable: nowhere, or what lies there is not the package.
    """
    spec = importlib.util.find_spec("torch_npu") if "torch_npu" not in sys.modules else None
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        if (Path(place) / "dynamo" / "torchair").is_dir():
            return Path(place)
    msg = (
        "the emulated NPU needs the real torch_npu package, and finds none that was not imported before. "
        "Install it with `pip install --no-deps 'torch_npu>=2.13,<2.15'` into an environment of its own (or "
        "with `--target DIR` into a directory, and put that into PYTHONPATH), and set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 there."
    )
    raise EmulatorUnavailable(msg, package="torch_npu")


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
    native = native_module(device)
    vars(top)["_C"] = sys.modules[native.__name__] = native
    children = [inner for inner in vars(native).values() if isinstance(inner, ModuleType)]
    sys.modules.update({inner.__name__: inner for inner in children})
    top.get_npu_format = lambda _: _FORMAT_ND
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
