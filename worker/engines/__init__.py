"""Engines: a traced graph becomes sections and files of an artifact, and these a callable."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol

from warmrank.worker.errors import BadConfig, NotYet
from warmrank.worker.settings import target
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig, EngineChoice
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import LoweredGraph

_log = logging.getLogger("torchair")
_HOMES = {
    "graph": ("warmrank.worker.engines.graph", "GraphEngine"),
    "aoti": ("warmrank.worker.engines.aoti", "AotiEngine"),
    "torchair": ("warmrank.worker.engines.torchair", "TorchairEngine"),
}
_BY_MODE = {"reduce-overhead": "graph", "max-autotune": "aoti"}
Graph = Callable[..., tuple[Any, ...]]
Sections = Mapping[str, bytes]
Files = Mapping[str, Path]
Groups = Mapping[str, str]


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


class Built(Value):
    """Products of an engine: bytes inside the artifact, and files beside it, both by name."""

    sections: Mapping[str, bytes]
    files: Mapping[str, bytes] = field(default_factory=dict)


class Engine(Protocol):
    """A way to run a traced graph."""

    name: str  # name in keys and reports
    version: str  # changes whenever the sections' meaning does; part of the key
    captured: bool  # whether the capture runtime captures its graphs; those of others are called as they are
    captures_itself: bool  # whether a call of its graph captures and replays by itself

    def check(self, device_kind: str) -> None:
        """Raise `WorkerError` for what this kind of device cannot compile, before anything is traced."""

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None, kernels: bool = True
    ) -> Built:
        """Compile a graph into bytes to keep; equal graphs give equal bytes.

        Runs within the graph's tracing context, before the guards are written. ``site`` is None where there
        is a graph only, which not every engine takes. Without ``kernels`` there is what an audit compares:
        sections that are made of the trace alone.
        """

    def load(self, sections: Sections, files: Files, groups: Groups, *, site: Site | None = None) -> Graph:
        """A callable over the graph's inputs; imports neither Dynamo, Inductor nor sympy.

        Engine ``torchair`` imports what TorchAir does. ``files`` are verified; ``groups`` maps a role to
        this process's name of the group.
        """


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
