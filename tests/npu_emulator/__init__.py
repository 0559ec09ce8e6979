"""An NPU that is none: the real torch_npu package's Python on memory of the CPU; for tests and benchmarks.

`install` stands in for the native parts of torch_npu, and nothing else: torchair, npugraph_ex and
``torch.npu`` are the real ones. Tensors lie on the CPU, and count as being on device kind ``npu``. It says
nothing of an NPU's speed, kernels or numbers, and everything of what the vendor's Python does with files,
graphs and addresses.

The product knows nothing of it. Processes with the variables of `environ` get it when they import torch_npu.
The other modules here are imported as ``torch_npu.emulated.*``: what torch_npu's own Python adds to torch is
pinned by its version in the environment fingerprint, and so is what stands in for it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_PACKAGE = "torch_npu.emulated"


class EmulatorUnavailable(ImportError):
    """The emulator of an NPU cannot be installed here."""


def environ(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for processes whose ``import torch_npu`` is to find an emulated NPU."""
    given = os.environ if variables is None else variables
    paths = [str(HERE / "site"), str(ROOT / "src"), str(ROOT), *given.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **given,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def is_installed() -> bool:
    """Whether this process's NPU is emulated."""
    return _PACKAGE in sys.modules


def install() -> None:
    """Emulate an NPU in this process, from now on; once is enough.

    Raises:
        EmulatorUnavailable: the real torch_npu package is not there, or was imported before.
    """
    if is_installed():
        return
    home = package_home()
    parent = ModuleType(_PACKAGE)
    parent.__path__ = [str(HERE)]
    sys.modules[_PACKAGE] = parent
    importlib.import_module(f"{_PACKAGE}.package").install_into_torch(home)


def package_home() -> Path:
    """Where the real torch_npu lies.

    Raises:
        EmulatorUnavailable: nowhere, or what lies there is not the package, or it was imported before.
    """
    spec = PathFinder.find_spec("torch_npu")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        if (Path(place) / "dynamo" / "torchair").is_dir() and not hasattr(sys.modules.get("torch_npu"), "_C"):
            return Path(place)
    msg = (
        "the emulated NPU needs the real torch_npu package, and finds none that was not imported before. "
        "`make .venv-npu/.installed` makes an environment with it"
    )
    raise EmulatorUnavailable(msg)


def install_on_import() -> None:
    """Let the first ``import torch_npu`` of this process install the emulator."""
    if PathFinder.find_spec("torch_npu") is not None:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds torch_npu, and loads it by `install`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name != "torch_npu":
            return None
        home = package_home()
        origin = str(home / "__init__.py")  # beside which the real package names its version
        spec = ModuleSpec(name, self, origin=origin, is_package=True)  # type: ignore[arg-type] # its methods suffice
        spec.submodule_search_locations = [str(home)]
        return spec

    def create_module(self, spec: ModuleSpec) -> Any:
        del spec

    def exec_module(self, module: ModuleType) -> None:
        del module  # `install` puts another one in its place
        install()
