"""Engines behind one port (`worker.engines.port`): which of them compiles what, and for whom."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import BadConfig, NotYet
from warmrank.worker.settings import target
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig, EngineChoice
    from warmrank.worker.engines.port import Engine

_log = logging.getLogger("torchair")
_HOMES = {
    "graph": ("warmrank.worker.engines.graph", "GraphEngine"),
    "aoti": ("warmrank.worker.engines.aoti", "AotiEngine"),
    "torchair": ("warmrank.worker.engines.torchair", "TorchairEngine"),
}
_BY_MODE = {"reduce-overhead": "graph", "max-autotune": "aoti"}


class Site(Value):
    """The function that an engine works for, for engines that need more of it than its graph."""

    method: MethodType
    config: CompilerConfig
    dynamic: bool  # traced with symbolic sizes
    # operator overload -> function that replaces it
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    ge_cache: bool = False  # keep what GE compiles (TorchAir's parameter)
    frame: bytes = b""  # at a load, the artifact's frame, as marshalled code; empty while compiling
    digest: str = ""  # at a load, the artifact's, hex; empty while compiling
    cache_root: Path | None = None  # the cache directory; None where nothing is kept


@functools.cache
def engine_named(name: str) -> Engine:
    """The engine of this name; raises `NotYet`: there is none in this release."""
    if name not in _HOMES:
        raise NotYet(f"engine {name}", instead=f"there are {', '.join(_HOMES)}; a later release may have it")
    module, attribute = _HOMES[name]
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine


def engine_for(config: CompilerConfig, *, wanted: EngineChoice, device_kind: str) -> Engine:
    """The engine that compiles for a configuration on a kind of device.

    ``auto`` is TorchAir on an NPU, in all modes; elsewhere the mode decides.

    Raises:
        BadConfig: mode, engine and device do not go together.
    """
    check_choice(wanted, config)
    if wanted != "auto":
        return engine_named(wanted)
    if device_kind == "npu" and has_torchair():
        return engine_named("torchair")
    mode = config.engine_mode()
    if mode not in _BY_MODE:
        msg = (
            f"mode {mode} is TorchAir's own, for device kind npu; this module lies on {device_kind}. "
            "Use mode reduce-overhead, or move the module to an NPU."
        )
        raise BadConfig(msg, parameter="mode", device_kind=device_kind)
    if device_kind == "npu":
        _say_without_torchair()
    return engine_named(_BY_MODE[mode])


def check_choice(wanted: EngineChoice, config: CompilerConfig) -> None:
    """Raise `BadConfig` for an engine that does not compile in the mode of a configuration."""
    mode = config.engine_mode()
    own = next((mode for mode, engine in _BY_MODE.items() if engine == wanted), mode)
    if mode != own:
        msg = (
            f"engine {wanted} compiles in mode {own}, and config.mode is {mode}; "
            "set one to fit the other, or leave the engine to auto"
        )
        raise BadConfig(msg, parameter="engine", mode=mode)


def has_torchair() -> bool:
    """True if the torch_npu that this process imported brings TorchAir along; some builds do not.

    An offline build goes by the machines that it is for: what is built must be what they ask for.
    """
    machines = target()
    if machines is not None:
        return machines.environment.get("torch_npu", "none") != "none"
    roots = getattr(sys.modules.get("torch_npu"), "__path__", ())
    return any((Path(root) / "dynamo" / "torchair").is_dir() for root in roots)


@functools.cache
def _say_without_torchair() -> None:
    """Warn, once per process, that the vendor's compiler is not there."""
    _log.warning("torch_npu is installed without TorchAir, so this package's own engines compile for the NPU")
