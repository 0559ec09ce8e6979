"""Which engine compiles: what was asked for, else what is best for the mode on the device."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.worker.keys.environment import target

from warmrank.worker.engines import Engine, engine_named
from warmrank.worker.errors import BadConfig

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.runtime.options import EngineChoice

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
