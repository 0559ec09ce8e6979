"""A script of TorchAir's users, unchanged, and the Python processes that it starts.

The script runs as ``python SCRIPT`` or ``python -m MODULE`` would run it, with TorchAir's names answered by
warmrank. This directory in ``PYTHONPATH`` makes its child processes do so, by Python's ``sitecustomize``.
Where torch_npu is not installed, ``import torch_npu`` gives a stand-in that leaves tensors where they are,
and process groups of the backend ``hccl`` are gloo's.

A path of TorchAir's is answered in this order: by warmrank's module that stands at it, by the installed
torch_npu, by an error that names what is missing. The vendor's own modules go on importing each other: what
is redirected are import statements of everybody else.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, NoReturn

_log = logging.getLogger("torchair")
_HERE = str(Path(__file__).parent)
_BACKENDS = {"npu": "torchair", "npugraph_ex": "npugraph_ex"}
_NOT_INSTALLED = "torch_npu is not installed here, and the script runs on the CPU"
_PACKAGES = ("torchair", "npugraph_ex")
_SCOPE = "warmrank.worker.torchair_scope"
_HCOM = "torchair.ge_concrete_graph.ge_converter.experimental"
_BELOW = {
    "": "warmrank",
    ".inference": "warmrank.inference",
    ".configs.compiler_config": "warmrank.configs.compiler_config",
    ".core.utils": "warmrank.worker.log",
    ".npu_fx_compiler": "warmrank",
}
_COLLECTIVES = (
    "hcom_allreduce", "hcom_allgather", "hcom_broadcast", "hcom_alltoall", "patch_for_hcom_allreduce",
)  # fmt: skip
_OURS = {f"{package}{below}": ours for package in _PACKAGES for below, ours in _BELOW.items()} | {
    f"{_HCOM}.{name}": _SCOPE for name in _COLLECTIVES
}
OURS: Mapping[str, str] = {
    **{path.rsplit(".", level)[0]: "" for path in _OURS for level in range(1, path.count(".") + 1)},
    **_OURS,
}
"""TorchAir's module -> ours, whose names win; empty for a package that only holds such modules."""
_ELSEWHERE = {f"{package}.scope": _SCOPE for package in _PACKAGES}
"""Modules that come from torch_npu where it is installed, and otherwise from us."""
_FLAT_CONFIG = ("npugraph_ex", "npugraph_ex.configs.compiler_config")
_FLAT_DEFAULTS = {"cache_compile": "config", "get_npu_backend": "compiler_config"}
"""Functions whose configuration defaults to npugraph_ex's in that package -> the parameter that takes it."""
_ALIASES = {f"torch_npu.dynamo.{package}": package for package in _PACKAGES}
_EXEMPT = (
    *_PACKAGES, "torch_npu", "warmrank", "importlib", "_frozen_importlib", "_frozen_importlib_external",
)  # fmt: skip
"""Code that gets the vendor's modules: the vendor's own, ours, and the import machinery."""


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
    if not has_torch_npu():
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
    redirect_names()
    sys.meta_path.append(_StandIn(is_child=is_child))
    sys.excepthook = functools.partial(_told, sys.excepthook)


def _told(
    hook: Any, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an error of the script, and what to do about devices that are not here."""
    if "device string: npu" in str(error) and not has_torch_npu():
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
        if name.startswith("torch_npu.") and not has_torch_npu():
            msg = f"no module {name!r}: {_NOT_INSTALLED}"
            raise ModuleNotFoundError(msg, name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Dynamo(spec.name) if spec.name == "torch_npu.dynamo" else ModuleType(spec.name)

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
            torch.Tensor.npu = torch.nn.Module.npu = lambda self, *_, **__: self  # type: ignore[attr-defined]


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
            backend = facade(package).get_npu_backend()
        return function(model, backend=backend, **given)

    return compiled


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A setting of the NPU, which has no effect."""


def _fill_npu(npu: Any) -> None:
    """``torch.npu``: no devices; settings and waiting do nothing; anything else is an error that says so."""
    npu.is_available = lambda: False
    npu.device_count = npu.current_device = lambda: 0
    npu.set_device = npu.synchronize = npu.empty_cache = npu.set_compile_mode = _nothing
    npu.set_option = npu.manual_seed = npu.manual_seed_all = _nothing
    npu.config = SimpleNamespace()  # whose attributes a script sets
    npu.graph_pool_handle = lambda: facade("torchair").graph_pool_handle()


def from_vendor(path: str, name: str) -> Any:
    """A name of the installed TorchAir.

    Raises:
        AttributeError: there is no TorchAir, or it has no such name; the text says which.
    """
    module = _vendor(path)
    if module is None and f"{path}.{name}" in _ELSEWHERE:
        return importlib.import_module(_ELSEWHERE[f"{path}.{name}"])
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


def has_torch_npu() -> bool:
    """True if the real package is imported, or can be; a stand-in has no place."""
    known = sys.modules.get("torch_npu")
    if known is not None:
        return bool(known.__path__)
    spec = importlib.util.find_spec("torch_npu")
    return spec is not None and bool(spec.submodule_search_locations)


def _vendor(path: str) -> ModuleType | None:
    """The installed TorchAir's module of this path; None where there is none."""
    if not has_torch_npu():
        return None
    from warmrank.worker.engines.torchair_vendor import vendor_package

    # The vendor's first import sets up logging and signals as it likes; this one leaves the script's.
    vendor_package(path.partition(".")[0])
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        return None


class Facade(ModuleType):
    """A module of TorchAir's: our names, then modules below it, then the vendor's."""

    def __init__(self, path: str) -> None:
        super().__init__(path, f"TorchAir's `{path}`, answered by warmrank.")
        self.__path__: list[str] = []
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._names()
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        below = f"{self._path}.{name}"
        if below in OURS:
            found: Any = facade(below)
        elif self._path in _FLAT_CONFIG and name == "CompilerConfig":
            from warmrank.worker.configs.sections import NpuGraphEx as found  # noqa: N813 - TorchAir's name
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
                found = getattr(module, name)
                parameter = _FLAT_DEFAULTS.get(name) if self._path.startswith("npugraph_ex") else None
                return found if parameter is None else _flat(found, parameter)
        return from_vendor(self._path, name)

    def _names(self) -> list[str]:
        """Names of ``import *``: ours, and the vendor's where it is installed."""
        ours = importlib.import_module(OURS[self._path]) if OURS[self._path] else None
        names = {*getattr(ours, "__all__", ()), *getattr(_vendor(self._path), "__all__", ())}
        return sorted(names | ({"CompilerConfig"} if self._path in _FLAT_CONFIG else set()))

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._names()})


def _flat(function: Any, parameter: str) -> Any:
    """The function with npugraph_ex's configuration as its default."""

    @functools.wraps(function)
    def flat(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get(parameter) is None and kwargs.get("backend") is None:
            kwargs[parameter] = facade("npugraph_ex").CompilerConfig()
        return function(*args, **kwargs)

    return flat


@functools.cache
def facade(path: str) -> Facade:
    """The one facade of a path in `OURS`."""
    return Facade(path)


class Dynamo(ModuleType):
    """``torch_npu.dynamo``, whose TorchAir is ours for everybody but the vendor."""

    def __getattribute__(self, name: str) -> Any:
        path = _ALIASES.get(f"torch_npu.dynamo.{name}")
        if path is None or _is_exempt(sys._getframe(1).f_globals):  # noqa: SLF001 - who asks decides
            return super().__getattribute__(name)
        return facade(path)


def _watch_dynamo() -> None:
    """Give the vendor's ``torch_npu.dynamo`` its class as soon as it is imported."""
    module = sys.modules.get("torch_npu.dynamo")
    if module is not None and type(module) is ModuleType:
        module.__class__ = Dynamo


def _asked(name: str) -> str | None:
    """TorchAir's path that an import names; None for anything else."""
    path = name.removeprefix("torch_npu.dynamo.")
    return path if path.partition(".")[0] in _PACKAGES else None


def _is_exempt(namespace: Mapping[str, Any] | None) -> bool:
    return str((namespace or {}).get("__name__", "")).partition(".")[0] in _EXEMPT


def redirect_names() -> None:
    """Answer ``import torchair``, ``npugraph_ex`` and ``torch_npu.dynamo.torchair`` by warmrank from now on.

    For a process that runs one script: it replaces ``builtins.__import__`` and ``importlib.import_module``.
    """
    statement, function = builtins.__import__, importlib.import_module

    def imported(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of the builtin's parameters
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or _is_exempt(globals):
            return statement(name, globals, locals, fromlist, level)
        path = _asked(name)
        if path is None:
            if name == "torch_npu.dynamo":  # TorchAir is not to be imported: `Dynamo` answers
                fromlist = [wanted for wanted in fromlist or () if f"{name}.{wanted}" not in _ALIASES]
                return function(name) if not fromlist else statement(name, globals, locals, fromlist, level)
            found = statement(name, globals, locals, fromlist, level)
            _watch_dynamo()
            return found
        module = _module(path)
        if fromlist:
            for wanted in fromlist:
                if wanted != "*" and not hasattr(module, wanted):
                    _import_from(module, path, wanted, function)
            return module
        if not name.startswith("torch_npu."):
            return facade(path.partition(".")[0])
        top = statement("torch_npu.dynamo", globals, locals, (), 0)
        _watch_dynamo()
        return top

    def import_module(name: str, package: str | None = None) -> ModuleType:
        absolute = importlib.util.resolve_name(name, package) if name.startswith(".") and package else name
        exempt = _is_exempt(sys._getframe(1).f_globals)  # noqa: SLF001 - who asks decides
        path = None if exempt else _asked(absolute)
        found = function(name, package) if path is None else _module(path)
        _watch_dynamo()
        return found

    builtins.__import__, importlib.import_module = imported, import_module


def _import_from(module: ModuleType, path: str, name: str, import_module: Any) -> None:
    """Import what ``from module import name`` did not find in it; the statement would hide the reason."""
    if path not in OURS:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(f"{path}.{name}")
        return
    try:
        getattr(module, name)
    except AttributeError as error:
        raise ImportError(str(error), name=path) from error


def _module(path: str) -> ModuleType:
    """The module that an import of TorchAir's path gives.

    Raises:
        ModuleNotFoundError: it is neither ours nor, here, the vendor's.
    """
    if path in OURS:
        return facade(path)
    parent, _, name = path.rpartition(".")
    found = _vendor(path)
    if found is None and path in _ELSEWHERE:
        found = importlib.import_module(_ELSEWHERE[path])
    if found is None:
        msg = (
            f"no module {path!r}: warmrank replaces TorchAir's public modules; others come with torch_npu, "
            f"which {'has no such module' if has_torch_npu() else 'is not installed here'}"
        )
        raise ModuleNotFoundError(msg, name=path)
    if parent in OURS:
        setattr(facade(parent), name, found)
    return found
