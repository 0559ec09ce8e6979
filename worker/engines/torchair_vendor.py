"""TorchAir as it is installed: importing it, and keeping it from changing what is this process's own.

Two packages of torch_npu compile: ``torchair`` (modes reduce-overhead and max-autotune) and ``npugraph_ex``
(the mode of that name). Both have ``inference.cache_compile`` and, behind it, ``CompiledModel``.

What is relied on, beyond the documented names (read in torch_npu 2.13.0):

* ``inference.cache_compile(method, ...)`` returns an object whose ``compile(globals)`` loads the cache, or
  else returns a saver that it built around ``torch.compile(method, backend=..., fullgraph=True, ...)``;
* the saver has ``cache_bin`` (where it writes), ``compiled_model``, ``errors`` and ``save_compiled_fn(id of
  the frame's code)``;
* ``CompiledModel`` has ``FILE``, ``VERSION``, ``get_cache_bin``, ``load``, ``save``, ``meta``,
  ``compiled_fn``, ``compiled_fx`` (signature, py_code, input_parameters);
* its code has constants as ``serialized_gm``, a pickle that ``SerializableGraphModule`` rebuilds, of which
  it takes attributes by ``getattr(fx_graph, name)``;
* what ``compile`` returns for a cache is a closure over ``compiled_fn``, whose globals hold the graph's
  callable under the one name of the frame that begins with ``__compiled_fn``;
* ``npu_fx_compiler._GLOBAL_GRAPH_ID`` is the number of the graph that was compiled last.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from warmrank.cache_store.cache_dir.private_files import DIRECTORY_MODE, sweep_debris, temporary_name
from warmrank.cache_store.errors import UnusableCache
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.log import logger as _log

PREFIX = "warmrank-torchair-"
_EVENT_LEVEL = 35  # torchair/core/utils.py
_NUMBER = "_GLOBAL_GRAPH_ID"
_PATCHING = threading.RLock()


class Vendor(NamedTuple):
    """One of the two packages."""

    name: str  # ``torchair`` or ``npugraph_ex``
    package: Any  # the package
    cache: Any  # its module behind ``inference.cache_compile``
    serializer: Any  # what it pickles constants with


@functools.cache
def vendor_for(mode: str) -> Vendor:
    """The package that compiles in a mode.

    Raises `DeviceUnavailable`: torch_npu, or this package of it, does not import.
    """
    name = "npugraph_ex" if mode == "npugraph_ex" else "torchair"
    package = vendor_package(name)
    with _importing(name):
        cache = importlib.import_module(f"{name}.inference._cache_compiler")
        pickling = importlib.import_module(f"{name}._acl_concrete_graph.acl_graph_cache_utils")
    logging.getLogger(name).addFilter(_is_no_private_file)
    return Vendor(name, package, cache, pickling.SerializableGraphModule)


@functools.cache
def vendor_package(name: str) -> Any:
    """Import one of the two packages; logging and signal handlers stay as they are.

    Raises `DeviceUnavailable`: torch_npu, or this package of it, does not import.
    """
    with _importing(name):
        importlib.import_module("torch_npu")
        return importlib.import_module(name)


@contextlib.contextmanager
def _importing(name: str) -> Iterator[None]:
    """Keep signal handlers, and of logger ``torchair``, which is this package's as well, level and handlers.

    After TorchAir's handlers a process would take no notice of SIGTERM and Ctrl-C; what is to be done at its
    end TorchAir has registered with ``atexit`` as well.
    """
    is_main = threading.current_thread() is threading.main_thread()  # others cannot set signal handlers
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    level, handlers, made = _log.level, list(_log.handlers), logging.getLoggerClass()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch, for what TorchAir uses
            yield
    except ImportError as error:
        msg = (
            f"engine torchair needs {name}, which comes with torch_npu, and it does not import: {error}. "
            "Install torch_npu where CANN is and source CANN's set_env.sh, or use engine graph."
        )
        raise DeviceUnavailable(msg, kind="npu", missing=name) from error
    finally:
        for number, handler in signals.items() if is_main else ():
            signal.signal(number, handler)
        logging.setLoggerClass(made)
        _log.setLevel(level)
        _log.handlers[:] = handlers
        if not hasattr(_log, "event"):
            _log.event = functools.partial(_log.log, _EVENT_LEVEL)  # type: ignore[attr-defined]


@contextlib.contextmanager
def instead_of_torch_compile(vendor: Vendor, take: Callable[..., Any]) -> Iterator[None]:
    """Let TorchAir's cache compiler call ``take`` for ``torch.compile``.

    TorchAir hands it the method and its own backend; with them this package traces once, for both.
    torch itself stays as it is: other threads look for patches of it meanwhile.
    """
    names = vars(vendor.cache)
    with _PATCHING:
        names["torch"] = SimpleNamespace(**{**vars(torch), "compile": take})
        try:
            yield
        finally:
            names["torch"] = torch


@contextlib.contextmanager
def numbered_anew(vendor: Vendor) -> Iterator[None]:
    """Graphs are numbered as in a new process; GE's form of a graph holds its number, inside of bytes."""
    names = vars(importlib.import_module(f"{vendor.name}.npu_fx_compiler"))
    with _PATCHING:
        before, names[_NUMBER] = names[_NUMBER], 0
        try:
            yield
        finally:
            names[_NUMBER] = max(before, names[_NUMBER])


@contextlib.contextmanager
def complaints(name: str) -> Iterator[list[str]]:
    """Collect warnings of TorchAir's logger, its only word on why it gives a cache up."""
    found: list[str] = []

    def noted(record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        found.append(record.getMessage())
        return PREFIX not in found[-1]

    logger = logging.getLogger(name)
    with _PATCHING:
        disabled, level = logger.disabled, logger.level
        logger.addFilter(noted)
        logger.setLevel(min(level or logging.WARNING, logging.WARNING))
        try:
            yield found
        finally:
            logger.removeFilter(noted)
            logger.setLevel(level)
            logger.disabled = disabled


def _is_no_private_file(record: logging.LogRecord) -> bool:
    """Filter of TorchAir's logger: leave out INFO lines about private files, which are not the cache's.

    DEBUG lines stay, for those who look for everything, and lazy ones are not evaluated twice.
    """
    return record.levelno != logging.INFO or PREFIX not in record.getMessage()


def private_directory() -> Path:
    """A new directory that only this user can enter; whoever asks removes it.

    Raises `UnusableCache`: there is no directory for temporary files, or no space in it.
    """
    with written_privately():
        root = Path(tempfile.gettempdir())
        _sweep_once(root)
        directory = root / f"{PREFIX}{temporary_name()}"
        directory.mkdir(mode=DIRECTORY_MODE)
    return directory


@contextlib.contextmanager
def written_privately(directory: Path | None = None) -> Iterator[None]:
    """Around what writes into a private directory, and reads it again, or makes one.

    Raises `UnusableCache`: it cannot be written; says why and what to do.
    """
    try:
        yield
    except OSError as error:
        raise UnusableCache(
            what="directory for TorchAir's files",
            where=str(directory or error.filename or "TMPDIR"),
            expected="writable, and space left on its disk",
            actual=error.strerror or str(error),
            remedy="free some space there, or set TMPDIR to another directory of this user's",
        ) from error


@functools.cache
def _sweep_once(root: Path) -> None:
    sweep_debris(root, prefix=PREFIX)
