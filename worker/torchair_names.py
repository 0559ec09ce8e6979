"""TorchAir's import paths, answered by warmrank: `redirected`, for one script that says ``import torchair``.

A path of TorchAir's is answered in this order: by warmrank's module that stands at it, by the installed
torch_npu, by an error that names what is missing. The vendor's own modules go on importing each other: what
is redirected are import statements of everybody else.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import inspect
import logging
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_log = logging.getLogger("torchair")

_FACE = "warmrank"
_CONFIGS = "warmrank.configs.compiler_config"
_LOG = "warmrank.worker.log"
OURS: Mapping[str, str] = {
    "torchair": _FACE,
    "torchair.inference": "warmrank.inference",
    "torchair.configs": "warmrank.configs",
    "torchair.configs.compiler_config": _CONFIGS,
    "torchair.core": "",
    "torchair.core.utils": _LOG,
    "torchair.npu_fx_compiler": _FACE,
    "torchair.ge_concrete_graph": "",
    "torchair.ge_concrete_graph.ge_converter": "",
    "torchair.ge_concrete_graph.ge_converter.experimental": "",
    **{
        f"torchair.ge_concrete_graph.ge_converter.experimental.{name}": "warmrank.worker.hcom"
        for name in (
            "patch_for_hcom_allreduce",
            "hcom_allreduce",
            "hcom_allgather",
            "hcom_broadcast",
            "hcom_alltoall",
        )
    },
    "npugraph_ex": _FACE,
    "npugraph_ex.inference": "warmrank.inference",
    "npugraph_ex.configs": "",
    "npugraph_ex.configs.compiler_config": _CONFIGS,
    "npugraph_ex.core": "",
    "npugraph_ex.core.utils": _LOG,
    "npugraph_ex.npu_fx_compiler": _FACE,
}
"""TorchAir's module -> ours, whose names win; empty for a package that only holds such modules."""

_FLAT_CONFIG = ("npugraph_ex", "npugraph_ex.configs.compiler_config")
_ALIASES = {"torch_npu.dynamo.torchair": "torchair", "torch_npu.dynamo.npugraph_ex": "npugraph_ex"}
_VENDORS = ("torchair", "npugraph_ex", "torch_npu", "warmrank")


def from_vendor(path: str, name: str) -> Any:
    """A name of the installed TorchAir.

    Raises:
        AttributeError: there is no TorchAir, or it has no such name; the text says which.
    """
    module = _vendor(path)
    if module is None:
        msg = (
            f"{path}.{name} is TorchAir's own, which warmrank does not replace; it comes with torch_npu, "
            "which is not installed here (or has no TorchAir). Run this on an NPU, or leave it out elsewhere."
        )
        raise AttributeError(msg)
    try:
        return getattr(module, name)
    except AttributeError:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"{path}.{name}")
        raise


def _has_torch_npu() -> bool:
    """Whether the real package is imported, or can be."""
    known = sys.modules.get("torch_npu")
    return bool(known.__path__ if known is not None else importlib.util.find_spec("torch_npu"))


def _vendor(path: str) -> ModuleType | None:
    """The installed TorchAir's module of this path; None where there is none."""
    if not _has_torch_npu():
        return None
    try:
        importlib.import_module("torch_npu")
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return None


class Facade(ModuleType):
    """A module of TorchAir's: our names, then modules below it, then the vendor's."""

    def __init__(self, path: str) -> None:
        super().__init__(path, f"TorchAir's `{path}`, answered by warmrank.")
        self.__path__: list[str] = []
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        below = f"{self._path}.{name}"
        if below in OURS:
            found: Any = facade(below)
        elif self._path in _FLAT_CONFIG and name == "CompilerConfig":
            from warmrank.worker.configs.compiler_config import NpuGraphEx as found  # noqa: N813 - TorchAir's name
        else:
            found = self._answer(name)
        setattr(self, name, found)
        return found

    def _answer(self, name: str) -> Any:
        ours = OURS[self._path]
        if ours:
            module = importlib.import_module(ours)
            public = getattr(module, "__all__", None)
            if (public is None or name in public) and hasattr(module, name):
                return getattr(module, name)
        return from_vendor(self._path, name)

    def __dir__(self) -> list[str]:
        ours = OURS[self._path]
        return sorted({*vars(self), *(dir(importlib.import_module(ours)) if ours else ())})


_facades: dict[str, Facade] = {}


def facade(path: str) -> Facade:
    """The one facade of a path in `OURS`."""
    if path not in _facades:
        _facades[path] = Facade(path)
    return _facades[path]


class _TorchNpu(ModuleType):
    """``torch_npu`` for ``import torch_npu.dynamo.torchair``: the real package, but for TorchAir below it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path

    def __getattr__(self, name: str) -> Any:
        below = f"{self._path}.{name}"
        if below in _ALIASES:
            return facade(_ALIASES[below])
        if below == "torch_npu.dynamo":
            return _TorchNpu(below)
        return getattr(importlib.import_module(self._path), name)


def _asked(name: str) -> str | None:
    """TorchAir's path that an import names; None for anything else."""
    for alias, path in _ALIASES.items():
        if name == alias or name.startswith(f"{alias}."):
            return path + name[len(alias) :]
    return name if name.partition(".")[0] in ("torchair", "npugraph_ex") else None


def _is_vendors(namespace: Mapping[str, Any] | None) -> bool:
    """Whether an import statement stands in the vendor's code, or ours."""
    name = str((namespace or {}).get("__name__", ""))
    return name.partition(".")[0] in _VENDORS


@contextlib.contextmanager
def redirected() -> Iterator[None]:
    """Answer ``import torchair``, ``npugraph_ex`` and ``torch_npu.dynamo.torchair`` by warmrank meanwhile.

    For the process that runs one script: it replaces ``builtins.__import__`` and ``importlib.import_module``.
    """
    statement, function = builtins.__import__, importlib.import_module

    def imported(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of the builtin's parameters
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        path = _asked(name) if level == 0 and not _is_vendors(globals) else None
        if (
            name == "torch_npu.dynamo"
            and not _is_vendors(globals)
            and {"torchair", "npugraph_ex"} & {*(fromlist or ())}
        ):
            return _TorchNpu(name)
        if path is None:
            return statement(name, globals, locals, fromlist, level)
        module = _module(path)
        if fromlist:
            for wanted in fromlist:
                if path not in OURS and wanted != "*" and not hasattr(module, wanted):
                    with contextlib.suppress(ModuleNotFoundError):
                        function(f"{path}.{wanted}")
            return module
        return _TorchNpu("torch_npu") if name.startswith("torch_npu.") else facade(path.partition(".")[0])

    def import_module(name: str, package: str | None = None) -> ModuleType:
        path = (
            None
            if _is_vendors(getattr(getattr(inspect.currentframe(), "f_back", None), "f_globals", None))
            else _asked(name)
        )
        return function(name, package) if path is None else _module(path)

    builtins.__import__, importlib.import_module = imported, import_module
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = statement, function


def _module(path: str) -> ModuleType:
    """The module that an import of TorchAir's path gives.

    Raises:
        ModuleNotFoundError: it is neither ours nor, here, the vendor's.
    """
    if path in OURS:
        return facade(path)
    parent, _, name = path.rpartition(".")
    found = _vendor(path)
    if found is None:
        msg = (
            f"no module {path!r}: warmrank replaces TorchAir's public modules; others come "
            "with torch_npu, which is not installed here"
        )
        raise ModuleNotFoundError(msg, name=path)
    if parent in OURS:
        setattr(facade(parent), name, found)
    return found


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS`` would, with TorchAir's names answered by warmrank.

    Where torch_npu is not installed, ``import torch_npu`` gives a stand-in that leaves tensors where they
    are:
    ``tensor.npu()`` and ``module.npu()`` return what they are called on.
    """
    if not _has_torch_npu():
        _stand_in_for_torch_npu()
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    with redirected():
        runpy.run_path(str(script), run_name="__main__")


def _stand_in_for_torch_npu() -> None:
    """Make ``import torch_npu`` and ``.npu()`` do nothing, and say so."""
    import torch

    def stays(value: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the value: it stays on the CPU."""
        del args, kwargs
        return value

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        msg = f"torch_npu.{name}: torch_npu is not installed here, and the script runs on the CPU"
        raise AttributeError(msg)

    _log.warning("torch_npu is not installed: the script runs on the CPU, and .npu() does nothing")
    npu = ModuleType("torch.npu", "A stand-in: there is no NPU.")
    npu.is_available = lambda: False  # type: ignore[attr-defined]
    npu.device_count = lambda: 0  # type: ignore[attr-defined]
    npu.synchronize = npu.set_device = npu.empty_cache = lambda *_: None  # type: ignore[attr-defined]
    npu.current_device = lambda: 0  # type: ignore[attr-defined]
    from warmrank import graph_pool_handle

    npu.graph_pool_handle = graph_pool_handle  # type: ignore[attr-defined]
    stand_in = ModuleType("torch_npu", "A stand-in: torch_npu is not installed.")
    stand_in.__spec__ = ModuleSpec("torch_npu", None)
    stand_in.__path__ = []
    stand_in.npu = npu  # type: ignore[attr-defined]
    stand_in.__getattr__ = missing  # type: ignore[method-assign]
    sys.modules["torch_npu"] = stand_in
    torch.Tensor.npu = torch.nn.Module.npu = stays  # type: ignore[attr-defined]
    torch.npu = npu  # type: ignore[attr-defined]
