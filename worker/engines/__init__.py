"""Engines turn a traced graph into sections and files of an artifact, and such into a callable.

One file per implementation. `engine_for` says which one compiles; `engine_named` finds the one that made an
artifact.
"""

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
from warmrank.worker.keys.environment import target
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.runtime.options import EngineChoice
    from warmrank.worker.torch_private.lowering import LoweredGraph

Graph = Callable[..., tuple[Any, ...]]
_HOMES = {
    "graph": ("warmrank.worker.engines.graph", "GraphEngine"),
    "aoti": ("warmrank.worker.engines.aoti", "AotiEngine"),
    "torchair": ("warmrank.worker.engines.torchair", "TorchairEngine"),
}


class Built(Value):
    """What an engine made of a graph.

    Attributes:
        sections: bytes to keep inside the artifact, by name.
        files: bytes to keep in files beside it, by file name.
    """

    sections: Mapping[str, bytes]
    files: Mapping[str, bytes] = field(default_factory=dict)


class Site(Value):
    """The function that an engine works for, for engines that need more of it than its graph.

    Attributes:
        method: the bound method.
        config: how it is compiled.
        dynamic: traced with symbolic sizes.
        decompositions: operator overload -> function that replaces it.
        ge_cache: keep what GE compiles (TorchAir's parameter, in mode max-autotune).
        frame: at a load, the artifact's frame, as marshalled code; empty while compiling.
        digest: at a load, the artifact's, hex; empty while compiling.
        cache_root: the cache directory; None where nothing is kept.
    """

    method: MethodType
    config: CompilerConfig
    dynamic: bool
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    ge_cache: bool = False
    frame: bytes = b""
    digest: str = ""
    cache_root: Path | None = None


class SelfCapturing(Protocol):
    """A loaded graph of an engine that captures by itself.

    Attributes:
        is_eager: it never captures, or has stopped.
        num_captures: captured graphs that it holds.
    """

    @property
    def is_eager(self) -> bool: ...  # noqa: D102 - above

    @property
    def num_captures(self) -> int: ...  # noqa: D102 - above

    def hand_over(self) -> None:
        """Let the node keep what was made at run time, for processes that load the same artifact later."""
        ...

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs for the graph's inputs."""
        ...


class Engine(Protocol):
    """A way to run a traced graph.

    Attributes:
        name: name in keys and reports.
        version: changes whenever the sections' meaning does; part of the key.
        captured: whether the capture runtime captures its graphs; those of others are called as they are.
        captures_itself: whether a call of its graph captures and replays by itself.
    """

    name: str
    version: str
    captured: bool
    captures_itself: bool

    def check(self, device_kind: str) -> None:
        """Refuse what could not be compiled for this kind of device, before anything is traced.

        Raises:
            WorkerError: something that the engine needs is missing; the message names the remedy.
        """
        ...

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool, site: Site | None = None
    ) -> Built:
        """What to keep of a graph; equal graphs give equal bytes.

        Args:
            lowered: the graph, and the call it was traced from; runs within its tracing context, before the
                guards are written.
            facts: what `worker.graph_facts` found.
            keep_compiled: keep compiled kernels in files beside the artifact (``ge_cache``).
            site: the call; None where there is a graph only, which not every engine takes.
        """
        ...

    def outline(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None
    ) -> Mapping[str, bytes]:
        """What an audit compares of `compile`'s sections: made of the trace alone, without kernels.

        Raises:
            WorkerError: as `compile`, where that needs no kernels to see it.
        """
        ...

    def load(
        self,
        sections: Mapping[str, bytes],
        files: Mapping[str, Path],
        groups: Mapping[str, str],
        *,
        site: Site | None = None,
    ) -> Graph:
        """A callable over the graph's inputs; imports neither Dynamo, Inductor nor sympy.

        Engine ``torchair`` imports what TorchAir does.

        Args:
            sections: of `compile`.
            files: where its files lie, by name; verified.
            groups: role -> this process's name of the group.
            site: the function; None where there is a graph only, which not every engine takes.
        """
        ...


class Outliner:
    """Stands for an engine where nothing is compiled for use, but outlined for an audit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.version = engine.name, engine.version
        self.captured, self.captures_itself = engine.captured, engine.captures_itself

    def check(self, device_kind: str) -> None:
        """See `Engine.check`; an outline needs no compiler."""

    def compile(
        self, lowered: LoweredGraph, facts: GraphFacts, *, keep_compiled: bool, site: Site | None = None
    ) -> Built:
        """See `Engine.compile`; the sections are those of the outline."""
        del keep_compiled
        return Built(sections=self.outline(lowered, facts, site=site))

    def outline(
        self, lowered: LoweredGraph, facts: GraphFacts, *, site: Site | None = None
    ) -> Mapping[str, bytes]:
        """See `Engine.outline`."""
        return self._engine.outline(lowered, facts, site=site)

    def load(
        self,
        sections: Mapping[str, bytes],
        files: Mapping[str, Path],
        groups: Mapping[str, str],
        *,
        site: Site | None = None,
    ) -> Graph:
        """See `Engine.load`."""
        return self._engine.load(sections, files, groups, site=site)


@functools.cache
def engine_named(name: str) -> Engine:
    """The engine of this name.

    Raises:
        NotYet: there is none in this release.
    """
    if name not in _HOMES:
        raise NotYet(f"engine {name}", instead=f"there are {', '.join(_HOMES)}; a later release may have it")
    module, attribute = _HOMES[name]
    engine: Engine = getattr(importlib.import_module(module), attribute)()
    return engine


_log = logging.getLogger("torchair")
_BY_MODE = {"reduce-overhead": "graph", "max-autotune": "aoti"}
_MODES = {"graph": "reduce-overhead", "aoti": "max-autotune"}


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
    """Refuse an engine that does not compile in the mode of a configuration.

    Raises:
        BadConfig: another mode, or another engine, was meant.
    """
    mode = config.engine_mode()
    if wanted in _MODES and mode != _MODES[wanted]:
        msg = (
            f"engine {wanted} compiles in mode {_MODES[wanted]}, and config.mode is {mode}; "
            "set one to fit the other, or leave the engine to auto"
        )
        raise BadConfig(msg, parameter="engine", mode=mode)


def has_torchair() -> bool:
    """Whether the torch_npu that this process imported brings TorchAir along; some builds do not.

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
