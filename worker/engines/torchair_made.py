"""What TorchAir makes at run time beside its cache file, which takes minutes: for the next process of this node.

Static-kernel packages and GE's graphs lie in a function's private directory, which ends with its process. The
node keeps them under the artifact's digest (`worker.engine_files`), so nothing is offered to another artifact.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from worker.engine_files import GRAPHS, PACKAGES, bring_in, hand_over
from worker.engines import Site
from worker.node_caches import GE, STATIC_KERNELS, engine_directory

_PREFIX_CHARS = 32


def bring_in_made(site: Site, private: Path) -> None:
    """Put what this node has of an artifact beside TorchAir's file, before anything is called."""
    for directory, patterns in _kept_of(site):
        bring_in(directory, site.digest[:_PREFIX_CHARS], private, patterns)


def hand_over_made(site: Site, private: Path) -> None:
    """Let the node keep what TorchAir made so far; once a node, by its first rank."""
    for directory, patterns in _kept_of(site):
        hand_over(private, directory, site.digest[:_PREFIX_CHARS], patterns)


def _kept_of(site: Site) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The node caches that keep something of a function, and which of its files."""
    if site.cache_root is None:
        return
    yield engine_directory(site.cache_root, STATIC_KERNELS), PACKAGES
    # A frozen parameter may stand in GE's graph by its value, and other ranks have other values.
    if not site.config.experimental_config.frozen_parameter:
        yield engine_directory(site.cache_root, GE), GRAPHS
