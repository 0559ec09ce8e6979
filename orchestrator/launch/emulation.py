"""`warmrank launch --emulate-npu`: the ranks, which inherit the environment, stand in for NPUs."""

from __future__ import annotations

import importlib.util
import os

from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import BadArgument

_VARIABLE = "WARMRANK_EMULATE_NPU"  # warmrank.worker.settings reads it


def emulate(config: Config) -> None:
    """From now on this process and what it starts emulate NPUs.

    Raises:
        BadArgument: the config's device kind is another one, or the real torch_npu package is not here.
    """
    if config.device != "npu":
        msg = f"--emulate-npu: the config's device is {config.device}; expected npu. Add --set device=npu."
        raise BadArgument(msg)
    if importlib.util.find_spec("torch_npu") is None:
        msg = (
            "--emulate-npu: the real torch_npu package is not installed. Run `make .venv-npu/.installed` and "
            "use that environment, or see docs/npu.md for one of your own."
        )
        raise BadArgument(msg)
    os.environ[_VARIABLE] = "1"
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
