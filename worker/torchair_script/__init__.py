"""A script of TorchAir's users, unchanged, and the Python processes that it starts.

The script runs as ``python SCRIPT`` or ``python -m MODULE`` would run it, with TorchAir's names answered by
warmrank. This directory in ``PYTHONPATH`` makes its child processes do so, by Python's ``sitecustomize``.
Where torch_npu is not installed, ``import torch_npu`` gives a stand-in that leaves tensors where they are,
and process groups of the backend ``hccl`` are gloo's.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from warmrank.worker import torchair_names

if TYPE_CHECKING:
    from warmrank.worker.devices.port import PoolHandle

_log = logging.getLogger("torchair")
_HERE = str(Path(__file__).parent)
_BACKENDS = {"npu": "torchair", "npugraph_ex": "npugraph_ex"}
_NOT_INSTALLED = "torch_npu is not installed here, and the script runs on the CPU"


def run_script(script: str, arguments: Sequence[str], *, as_module: bool = False) -> None:
    """Run a script, or a module by its name, as Python would, with TorchAir's names answered by warmrank.

    It becomes the process's main module, for good: threads and exit handlers may outlive its last line.
    """
    given = os.environ.get("PYTHONPATH", "")
    if _HERE not in given.split(os.pathsep):
        os.environ["PYTHONPATH"] = _HERE + (f"{os.pathsep}{given}" if given else "")
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd() if as_module else Path(script).resolve().parent)
    redirect()
    if not torchair_names.has_torch_npu():
        importlib.import_module("torch_npu")  # gives ``.npu()`` to scripts that rely on torch's autoload
    sys.modules["__main__"] = main = ModuleType("__main__")
    if as_module:
        runpy._run_module_as_main(script)  # type: ignore[attr-defined] # noqa: SLF001 - what ``python -m`` calls
        return
    file = os.path.abspath(script)  # noqa: PTH100 - Python's own keeps links
    main.__file__ = file
    main.__loader__ = loader = SourceFileLoader("__main__", file)
    exec(loader.source_to_code(loader.get_data(file), file), vars(main))  # noqa: S102


def redirect(*, is_child: bool = False) -> None:
    """Answer TorchAir's names by warmrank in this process, and torch_npu where it is not installed."""
    torchair_names.redirect()
    sys.meta_path.append(_StandIn(is_child=is_child))
    sys.excepthook = functools.partial(_told, sys.excepthook)


def _told(
    hook: Any, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an error of the script, and what to do about devices that are not here."""
    if "device string: npu" in str(error) and not torchair_names.has_torch_npu():
        error.add_note(f"{_NOT_INSTALLED}: it has no device 'npu'. Use .npu(), or run it on an NPU.")
    hook(kind, error, traceback)


def next_on_the_path(name: str) -> None:
    """Run the module that this package's directory hides from Python."""
    spec = PathFinder.find_spec(name, [path for path in sys.path if path != _HERE])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


class _StandIn:
    """Finds ``torch_npu`` where nobody else does; its ``.npu()`` leaves tensors and modules on the CPU."""

    def __init__(self, *, is_child: bool) -> None:
        self._is_child = is_child  # of a process that has said what is missing

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        del path, target
        if name in ("torch_npu", "torch_npu.npu", "torch_npu.dynamo"):
            return ModuleSpec(name, self, is_package=name == "torch_npu")  # type: ignore[arg-type]
        if name.startswith("torch_npu.") and not torchair_names.has_torch_npu():
            msg = f"no module {name!r}: {_NOT_INSTALLED}"
            raise ModuleNotFoundError(msg, name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return torchair_names.Dynamo(spec.name) if spec.name == "torch_npu.dynamo" else ModuleType(spec.name)

    def exec_module(self, module: Any) -> None:
        def missing(name: str) -> NoReturn:
            if name.startswith("__"):
                raise AttributeError(name)
            msg = f"{module.__name__}.{name}: {_NOT_INSTALLED}"
            raise AttributeError(msg)

        module.__getattr__ = missing
        if module.__name__ == "torch_npu.npu":
            _fill_npu(module)
        elif module.__name__ == "torch_npu":
            import torch

            if not self._is_child:
                _log.warning(
                    "torch_npu is not installed: the script runs on the CPU, and .npu() does nothing"
                )
            _register_hccl()
            torch.npu = importlib.import_module("torch_npu.npu")  # type: ignore[attr-defined]
            importlib.import_module("torch_npu.dynamo")
            torch.compile = _with_backends(torch.compile)
            torch.Tensor.npu = torch.nn.Module.npu = _stays  # type: ignore[attr-defined]


def _register_hccl() -> None:
    """The process groups of NPUs, which on a CPU are gloo's."""
    import torch.distributed as dist

    if dist.is_available():
        make = dist.ProcessGroupGloo
        dist.Backend.register_backend(
            "hccl",
            lambda store, rank, size, timeout: make(store, rank, size, timeout=timeout),
            devices=["cpu"],
        )


def _with_backends(function: Any) -> Any:
    """``torch.compile`` with the backends that torch_npu registers by name."""

    @functools.wraps(function)
    def compiled(model: Any = None, *, backend: Any = "inductor", **given: Any) -> Any:
        if package := _BACKENDS.get(backend) if isinstance(backend, str) else None:
            backend = torchair_names.facade(package).get_npu_backend()
        return function(model, backend=backend, **given)

    return compiled


def _stays(value: Any, *args: Any, **kwargs: Any) -> Any:
    """``tensor.npu()``: the value stays on the CPU."""
    del args, kwargs
    return value


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A setting of the NPU, which has no effect."""


def _no_device() -> int:
    """Index or number of the devices."""
    return 0


def _fill_npu(npu: Any) -> None:
    """``torch.npu``: no devices; settings and waiting do nothing; anything else is an error that says so."""
    npu.is_available = lambda: False
    npu.device_count = npu.current_device = _no_device
    for name in (
        "set_device",
        "synchronize",
        "empty_cache",
        "set_compile_mode",
        "set_option",
        "manual_seed",
        "manual_seed_all",
    ):
        setattr(npu, name, _nothing)
    npu.config = SimpleNamespace()  # whose attributes a script sets
    npu.graph_pool_handle = _graph_pool_handle


def _graph_pool_handle() -> PoolHandle:
    from warmrank import graph_pool_handle

    return graph_pool_handle()
