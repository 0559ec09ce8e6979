"""Cache directories of the tools that a command uses: pulled before it, pushed when it is ready.

The same as `warmrank sync`, with the config's store and keys. Invariants: what cannot be pulled or pushed
never stops the command; several nodes of one world keep their directories apart, because their ranks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.errors import NotInStore, StoreError, is_final
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.serving import SyncedCache, variable_of
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.serve.places import Place
from warmrank.orchestrator.store.sync import Seat, Target, targets
from warmrank.orchestrator.text import count_text
from warmrank.worker.environment import environment
from warmrank.worker.settings import expanded

DIRECTORY = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDirectory:
    """A tool's directory on this node, and under what it is stored."""

    tool: str
    variable: str
    target: Target


def tool_directories(config: Config, place: Place) -> tuple[ToolDirectory, ...]:
    """The directories that the config wants kept, as this node understands their paths.

    Raises:
        BadArgument: a key of ``exec.keys`` cannot be found out here.
    """
    keys = [*(config.exec.keys or _default_keys(config)), *_node_key(place)]
    seat = Seat(scope="node", rank=None, world_size=None)
    return tuple(
        ToolDirectory(
            tool=cache.tool,
            variable=variable_of(cache),
            target=targets([str(_directory(config, cache))], keys, seat)[0],
        )
        for cache in config.exec.sync
    )


def tool_variables(directories: Sequence[ToolDirectory]) -> dict[str, str]:
    """What tells each tool its directory."""
    return {each.variable: str(each.target.directory) for each in directories if each.variable}


def pull_all(store: Store, directories: Sequence[ToolDirectory]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Bring the directories.

    Returns:
        What came or was not there, and what went wrong, one line each.

    Raises:
        StoreError: of a place of the store that is required.
    """
    said, problems = [], []
    for each in directories:
        try:
            report = store.pull_directory(each.tool, each.target.directory, each.target.components)
        except NotInStore as miss:
            said.append(f"{each.tool}: nothing to pull: {miss.remedy}")
        except StoreError as error:
            if is_final(error):
                raise
            problems.append(f"{each.tool}: not pulled: {error}")
        else:
            said.append(f"{each.tool}: pulled {report.num_new} new of {count_text(report.num_files, 'file')}")
            problems += (f"{each.tool}: {problem}" for problem in report.problems)
    return tuple(said), tuple(problems)


def push_all(store: Store, directories: Sequence[ToolDirectory]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Store the directories that are there; returns and raises as `pull_all`."""
    said, problems = [], []
    for each in directories:
        if not each.target.directory.is_dir():
            said.append(f"{each.tool}: nothing to push: the command made no {each.target.directory}")
            continue
        try:
            report = store.push_directory(each.tool, each.target.directory, each.target.components)
        except StoreError as error:
            if is_final(error):
                raise
            problems.append(f"{each.tool}: not pushed: {error}")
        else:
            files, num_new = count_text(report.num_files, "file"), report.num_blobs_new
            said.append(f"{each.tool}: pushed {files}, {num_new} of them new to the store")
    return tuple(said), tuple(problems)


def _directory(config: Config, cache: SyncedCache) -> Path:
    return Path(expanded(cache.path)) if cache.path else config.cache_dir / DIRECTORY / cache.tool


def _default_keys(config: Config) -> list[str]:
    """All that is known of the environment, and the launch, lest models push in turns under one key."""
    known = [f"{name}={value}" for name, value in sorted(environment().items())]
    return [*known, f"launch={launch_key(config)}"]


def _node_key(place: Place) -> list[str]:
    return [f"node={place.node_rank} of {place.num_nodes}"] if place.num_nodes > 1 else []
