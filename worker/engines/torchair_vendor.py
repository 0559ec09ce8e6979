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
* ``npu_fx_compiler._GLOBAL_GRAPH_ID`` is the number of the graph that was compiled last;
  ``_is_binary_operator`` there tells the few operators of numbers for which it computes a result, and
  ``guard_gears_shape`` makes the sizes of gears conditions of Dynamo's;
* options have the same dotted name in ``torchair.CompilerConfig`` as in ours, but for those named here; an
  option is an attribute of the object or of a section of it, and holds either its value, or an object whose
  class has a property ``value``. Every value that is set is read back, so an option that the installed
  version lacks, refuses or ignores is an error, which names all of them at once. What belongs to another mode
  stays behind; `CompilerConfig.check` says so. A change of the translation is a change of the engine, whose
  version is part of the key.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import operator
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from warmrank.cache_store.cache_dir.private_files import DIRECTORY_MODE, sweep_debris, temporary_name
from warmrank.cache_store.errors import UnusableCache
from warmrank.worker.configs.options import TORCHAIR, options, same
from warmrank.worker.configs.sections import no_effect
from warmrank.worker.configs.torchair import FLAT, INVERTED, is_option
from warmrank.worker.errors import DeviceUnavailable, NoCounterpart
from warmrank.worker.log import logger as _log

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig

PREFIX = "warmrank-torchair-"
_EVENT_LEVEL = 35  # torchair/core/utils.py
_NUMBER = "_GLOBAL_GRAPH_ID"
_KNOWN_OPERATORS, _GUARD_OF_GEARS = "_is_binary_operator", "guard_gears_shape"
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
    """Let TorchAir's cache compiler call ``take`` for ``torch.compile``, in this thread.

    TorchAir hands it the method and its own backend; with them this package traces once, for both.
    torch itself stays as it is: other threads look for patches of it meanwhile.
    """
    names, thread = vars(vendor.cache), threading.get_ident()

    def called(*args: Any, **options: Any) -> Any:  # others may use TorchAir without this package
        return (take if threading.get_ident() == thread else torch.compile)(*args, **options)

    with _PATCHING:
        names["torch"] = SimpleNamespace(**{**vars(torch), "compile": called})
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
def as_we_compile(vendor: Vendor) -> Iterator[None]:
    """Let TorchAir compute all operators of numbers (``n & 7``), and leave sizes that are no gears to us.

    It fails at operators that it does not list, and for other sizes Dynamo would compile once more.
    """
    names = vars(importlib.import_module(f"{vendor.name}.npu_fx_compiler"))
    ours = {_KNOWN_OPERATORS: lambda target: target is not operator.getitem, _GUARD_OF_GEARS: lambda _: None}
    with _PATCHING:
        before = {name: names[name] for name in ours if name in names}
        names.update({name: ours[name] for name in before})
        try:
            yield
        finally:
            names.update(before)


@contextlib.contextmanager
def complaints(name: str) -> Iterator[list[str]]:
    """Collect warnings of TorchAir's logger, its only word on why it gives a cache up.

    Of private files, and of a frame that it cannot write, it says nothing to the user: ours is kept.
    """
    found: list[str] = []

    def noted(record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        found.append(record.getMessage())
        return PREFIX not in found[-1] and not found[-1].startswith("Skip cache as failed to serialize")

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


OURS_ALONE: Mapping[str, tuple[str, ...]] = {
    "inference_config.dynamic_gears_merge_policy": ("reduce-overhead", "npugraph_ex"),
}
"""Our name -> modes in which this package does it, and TorchAir has nothing to do with it."""


class Refusal(NamedTuple):
    """Options that TorchAir has, and of which nothing good comes."""

    modes: tuple[str, ...]  # in which it is so
    values: Mapping[str, Any]  # TorchAir's name -> value; all have to be set so
    remedy: str  # what to do instead
    why: str = "TorchAir keeps nothing that it compiles so"  # what TorchAir does then
    always: bool = False  # whether it is so even where nothing is to be kept


_AUTOTUNE, _REDUCE, _FLAT = ("max-autotune",), ("reduce-overhead",), ("npugraph_ex",)
_STAGE = "data_dump_stage"
_DEFAULT, _GRAPH = "leave it at its default", 'engine="graph" does it'
_DUMPED = f"{_GRAPH}, and config.dump_config.enable_dump dumps from the graph that runs"
_PY = "set config.debug.graph_dump.type = 'py'"
_ONLY_PY = "TorchAir writes only 'py' in this mode"
_ONLY_FOR_OTHERS = "TorchAir runs these passes only over graphs that it does not keep"
_CSV = {"debug.fx_summary.type": "csv"}
REFUSED = (
    Refusal(_AUTOTUNE, {"debug.run_eagerly": True}, f"{_GRAPH}, as does config.mode = 'reduce-overhead'"),
    Refusal(_AUTOTUNE + _REDUCE, {"debug.data_dump.type": "npy"}, _DUMPED),
    Refusal(
        _AUTOTUNE,
        {**_CSV, "debug.fx_summary.skip_compile": True},
        "set config.debug.fx_summary.skip_compile = False",
    ),
    Refusal(_AUTOTUNE, {"export.export_mode": True}, "call torchair.dynamo_export"),
    Refusal(_AUTOTUNE, {"experimental_config.enable_ref_data": True}, _DEFAULT),
    Refusal(_AUTOTUNE, {"aoe_config.aoe_mode": "2"}, "tune without a cache, by warmrank.get_npu_backend"),
    Refusal(_AUTOTUNE + _REDUCE, {"experimental_config.npu_fx_pass": True}, _DEFAULT, why=_ONLY_FOR_OTHERS),
    Refusal(_REDUCE, _CSV, _GRAPH, why="TorchAir writes none in this mode", always=True),
    Refusal(_REDUCE, {"debug.graph_dump.type": "txt"}, _PY, why=_ONLY_PY, always=True),
    Refusal(_REDUCE, {"debug.graph_dump.type": "pbtxt"}, _PY, why=_ONLY_PY, always=True),
    Refusal(
        _REDUCE,
        {"dump_config.enable_dump": True, f"dump_config.{_STAGE}": "original"},
        f"set config.dump_config.{_STAGE} = 'optimized'",
    ),
    Refusal(
        _FLAT,
        {"dump_tensor_data": True, _STAGE: "original"},
        f"set config.npugraphex_config.{_STAGE} = 'optimized'",
    ),
    Refusal(_FLAT, {"dump_tensor_data": True, "force_eager": True}, "set one of the two"),
)
_MISSING = (
    "has no counterpart in the installed TorchAir; leave it at its default, or use another mode or engine"
)
_PATHS = (
    "ge.exec.dumpPath", "aclgraph.dumpPath", "data_dump_path",
    "ge.fusionSwitchFile", "ge_dump_with_acl_config",
)  # fmt: skip
_FLAT_SECTION = "npugraphex_config."


class Translation(NamedTuple):
    """Values of a configuration that TorchAir writes into the code that it generates."""

    pool: object | None  # handle of the memory pool that the configuration names, under either of its names
    paths: Mapping[str, str]  # TorchAir's option -> path; those of dumps hold the rank


class _Meant(NamedTuple):
    """A value for one of TorchAir's options."""

    value: Any  # in TorchAir's sense
    said: str  # what stands in our configuration
    changed: bool  # whether somebody set it


def translated(config: CompilerConfig, theirs: Any, *, kept: bool = True) -> Translation:
    """Fill a fresh object of TorchAir's with our options, so that it means what `config` does.

    Args:
        config: ours.
        theirs: a new ``torchair.CompilerConfig``, or ``npugraph_ex.CompilerConfig`` for mode ``npugraph_ex``.
            TorchAir changes it while it compiles, so each compile needs one of its own.
        kept: whether TorchAir is to keep what it compiles; it cannot under every option.

    Raises:
        NoCounterpart: options that the installed version lacks or refuses, that contradict each other, or
            whose outcome cannot be kept; all of them, each with a remedy.
    """
    problems: list[str] = []
    flat = config.mode == "npugraph_ex"
    meant = _meant(config, problems, flat=flat)
    if flat and meant["use_graph_pool"].changed:
        # As TorchAir does by itself, with a warning that nobody can act upon.
        meant["reuse_graph_pool_in_same_fx"] = meant["reuse_graph_pool_in_same_fx"]._replace(value=False)
    for name, one in meant.items():
        why = _put(theirs, name, one.value)
        if why and one.changed:
            problems.append(f"{one.said} {why}")
        elif why and why != _MISSING:
            _log.warning("our default %s %s", one.said, why)
    problems += _refused(config.mode, meant, kept=kept)
    if problems:
        msg = "TorchAir cannot take all of the configuration:" + "".join(f"\n- {one}" for one in problems)
        raise NoCounterpart(msg, mode=config.mode, problems=tuple(problems))
    of_one_graph, of_all = theirs.as_dict()
    every = {**of_one_graph, **of_all}
    pool = meant.get("use_graph_pool", meant.get("aclgraph_config.use_custom_pool"))
    return Translation(
        pool=None if pool is None else pool.value,
        paths={name: str(every[name]) for name in _PATHS if every.get(name)},
    )


def _meant(config: CompilerConfig, problems: list[str], *, flat: bool) -> dict[str, _Meant]:
    """Values that our options ask of TorchAir's, but for those that do nothing in this mode.

    Of several that mean one option of TorchAir's the one counts that somebody set.
    """
    found: dict[str, _Meant] = {}
    for name, option, value in options(config):
        if no_effect(option, value, mode=config.mode, engine=TORCHAIR):
            continue
        if config.mode in OURS_ALONE.get(name, ()):
            continue
        theirs = _name(name, flat=flat)
        inverted = flat and theirs in INVERTED and not name.startswith(_FLAT_SECTION)
        one = _Meant(
            value=not value if inverted else value,
            said=f"config.{name} = {value!r}",
            changed=not same(value, option.default),
        )
        other = found.setdefault(theirs, one)
        if one.changed and other.changed and not same(one.value, other.value):
            both = f"{other.said} and {one.said} contradict each other"
            problems.append(f"{both}, for both are TorchAir's {theirs}; set one of them")
        elif one.changed:
            found[theirs] = one
    return found


def _name(ours: str, *, flat: bool) -> str:
    """TorchAir's name of an option of ours; ours where it has none, which its object then lacks."""
    if flat:
        return FLAT.get(ours, ours.removeprefix(_FLAT_SECTION))
    return "debug.run_eagerly" if ours == f"{_FLAT_SECTION}force_eager" else ours


def _put(theirs: Any, name: str, value: Any) -> str:
    """Set an option of TorchAir's where it differs; return what is wrong where it does not take it."""
    *parts, last = name.split(".")
    section = theirs
    for part in parts:
        section = getattr(section, part, None)
    if section is None or not hasattr(section, last):  # some sections take any name without a word
        return _MISSING
    if _holds(getattr(section, last), value):
        return ""
    why = "it keeps another value"
    try:
        setattr(section, last, value)
    except Exception as error:  # noqa: BLE001 - whatever its check raises
        why = (str(error) or type(error).__name__).splitlines()[0]
    return "" if _holds(getattr(section, last), value) else f"is refused by TorchAir's {name} ({why})"


def _holds(held: Any, value: Any) -> bool:
    """True if an option of TorchAir's holds our value; it reads flags as "0" and "1", ints as text."""
    held = held.value if is_option(held) else held
    if isinstance(value, bool):
        return held is value or held == str(int(value))
    if isinstance(value, int):
        return not isinstance(held, bool) and held in (value, str(value))
    if isinstance(value, str):
        return held in (value, os.path.realpath(value))  # a directory, as TorchAir keeps it
    return held is value or (type(held) is type(value) and bool(held == value))


def _refused(mode: str, meant: Mapping[str, _Meant], *, kept: bool) -> Iterator[str]:
    """Options that TorchAir takes, but does not obey, or keeps nothing of."""
    for refusal in REFUSED:
        if mode not in refusal.modes or not (kept or refusal.always):
            continue
        if all(name in meant and same(meant[name].value, value) for name, value in refusal.values.items()):
            said = " with ".join(meant[name].said for name in refusal.values)
            yield f"{said}: {refusal.why}; {refusal.remedy}"
