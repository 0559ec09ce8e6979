"""Node caches: directories in which tools keep what they compiled, as a config declares them.

What is new or changed in them after a launch belongs to the node (`worker.node_collecting`); what came from
the store is put there (`cache_store.node.placing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.node.placing import Destination
from warmrank.worker.values import Value


class NodeCache(Value):
    """A node cache of this node.

    Attributes:
        name: its name.
        directory: where it lies on this node.
        patterns: which files below it belong to it; a ``*`` stands for slashes too.
        collect: ``new``: what a launch adds or changes; ``all``: also what was there before; ``none``.
        in_sets: engine torchair fills it, artifact by artifact (`worker.engine_files`).
    """

    name: str
    directory: str
    patterns: tuple[str, ...] = ("*",)
    collect: str = "new"
    in_sets: bool = False


def destinations(caches: Iterable[NodeCache]) -> dict[str, Destination]:
    """Where what comes from the store goes."""
    return {
        cache.name: Destination(path=Path(cache.directory), patterns=cache.patterns, in_sets=cache.in_sets)
        for cache in caches
    }


def place_faults(caches: Sequence[NodeCache], cache_dir: Path, own: Mapping[str, Path]) -> dict[str, str]:
    """Why node caches cannot lie where they are declared, by their names.

    Args:
        caches: all that are declared.
        cache_dir: the cache directory, absolute.
        own: the directories below it that engine torchair fills, by name.
    """
    places = {cache.name: os.path.realpath(cache.directory) for cache in caches}
    places |= {name: os.path.realpath(path) for name, path in own.items()}
    root = os.path.realpath(cache_dir)
    below = os.path.join(root, next(iter(own.values())).parent.name)  # noqa: PTH118 - of text
    faults: dict[str, str] = {}
    for cache in caches:
        place = places[cache.name]
        others = [name for name, other in places.items() if name != cache.name and _overlap(place, other)]
        if not os.path.isabs(cache.directory):  # noqa: PTH117 - of text
            faults[cache.name] = "is not absolute, or names a home or a variable that is not there"
        elif place == os.sep:
            faults[cache.name] = "is the root of the file system"
        elif _overlap(place, root) and not place.startswith(below + os.sep):
            faults[cache.name] = f"overlaps with the cache directory {cache_dir}, outside of its node_caches/"
        elif others:
            faults[cache.name] = f"overlaps with that of node cache {others[0]!r}"
    return faults


def _overlap(one: str, other: str) -> bool:
    """Whether two directories are one, or one lies within the other."""
    first, second = (f"{path.rstrip(os.sep)}{os.sep}" for path in (one, other))
    return first.startswith(second) or second.startswith(first)
