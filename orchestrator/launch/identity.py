"""The identity of a launch as named components; their hash is the launch key.

Left out on purpose: the number of ranks and the sizes of the parallel axes, so that a launch of another world
size is found and adopted from; and whatever changes no artifact: the launch's name, Ray settings, paths of
store and cache, time-outs. Only what `warmrank exec` runs of a config without a workload goes by its name.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

from warmrank.cache_store.digests import canonical_json, key_of
from warmrank.orchestrator.config.models import Config, EntrypointWorkload


def identity(config: Config) -> dict[str, str]:
    """Named components of what is launched; one for each argument, so that a difference can be named."""
    components: dict[str, str] = {"device": config.device, "guards": config.guards}
    if isinstance(config.workload, EntrypointWorkload):
        components["entrypoint"] = config.workload.entrypoint
        for name, value in config.workload.arguments.items():
            components[f"argument {name}"] = canonical_json(value).decode()
        return components
    if config.workload is None:
        return components | {"name": config.name}
    script = config.workload.script  # without anything of this machine
    components["script"] = Path(script).name if Path(script).is_absolute() else posixpath.normpath(script)
    components["arguments"] = canonical_json(list(config.workload.arguments)).decode()
    return components


def launch_key(config: Config) -> str:
    """The key that every launch of the same thing has, whatever its world size."""
    return key_of(identity(config))
