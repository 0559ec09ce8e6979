"""`warmrank exec -- COMMAND` with a store and no config: the compile caches of any program of torch.

Inductor, AOTAutograd and Triton name their entries after their contents, so programs may share a directory;
what their names lack (releases, devices, instruction sets) is the key under which it comes back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.keys import key_of
from warmrank.orchestrator.config.models import KNOWN_VARIABLES, Config, ExecConfig, SyncedCache
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.store.sync import found_out
from warmrank.worker.keys.environment import environment

STORE = "WARMRANK_STORE"


def config_without_file(
    store: StoreConfig, keys: Sequence[str], others: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Config:
    """A config of a store alone.

    Args:
        store: the store.
        keys: ``NAME`` or ``NAME=VALUE``, beside the environment and Triton's version.
        others: further caches as ``TOOL:VARIABLE``.
        environ: where a tool's variable is set already, its directory is that one.
    """
    decided = {**environment(), "triton": found_out("triton") or "none"}
    own = {name: value for name, _, value in (key.partition("=") for key in keys)}
    known = [f"{name}={value}" for name, value in sorted(decided.items()) if name not in own]
    key = key_of({name: value for name, _, value in (one.partition("=") for one in (*known, *keys))})
    home = Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    # vLLM's plugin serves it where the variable says so to all processes.
    served = {"vllm"} if STORE in environ else set()
    tools = {name: variable for name, variable in KNOWN_VARIABLES.items() if name not in served}
    tools |= {tool: variable for tool, _, variable in (other.partition(":") for other in others)}
    caches = [
        SyncedCache(tool=tool, variable=variable, path=environ.get(variable, ""))
        for tool, variable in tools.items()
    ]
    return Config(
        name="exec",
        store=store,
        cache_dir=home / "warmrank" / "exec" / key[:12],
        exec=ExecConfig(sync=tuple(caches), keys=(*known, *keys)),
    )
