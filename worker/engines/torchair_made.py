"""What TorchAir makes at run time beside its cache file, in minutes: for the next process of this node.

Static-kernel packages and GE's graphs lie in a function's private directory, which ends with its process.
The node keeps them under the artifact's digest (`worker.engine_files`): another one is never offered them.
"""

from __future__ import annotations

import atexit
from pathlib import Path

from worker.engine_files import GRAPHS, PACKAGES, bring_in, hand_over
from worker.engines import Site
from worker.known_caches import GE, STATIC_KERNELS, engine_directory
from worker.settings import settings
from worker.values import Value

_PREFIX_CHARS = 32


class Made(Value):
    """The private directory of one loaded artifact, and where the node keeps what is made there.

    Attributes:
        private: the directory of TorchAir's file.
        prefix: of the artifact in the node caches.
        kept: directories of node caches, each with the files that belong there; nothing is kept without.
    """

    private: Path
    prefix: str
    kept: tuple[tuple[Path, tuple[str, ...]], ...]

    def bring_in(self) -> None:
        """Put what this node has of the artifact beside TorchAir's file, before anything is called."""
        for directory, patterns in self.kept:
            bring_in(directory, self.prefix, self.private, patterns)

    def hand_over(self) -> None:
        """Let the node keep what TorchAir made so far."""
        for directory, patterns in self.kept:
            hand_over(self.private, directory, self.prefix, patterns)

    def hand_over_at_exit(self) -> None:
        """Hand over when the process ends, on the node's first rank: a script has nobody who asks for it."""
        atexit.register(_end, self)


def made_of(site: Site, private: Path) -> Made:
    """What becomes of the files that TorchAir makes of a function.

    GE's graphs are not kept where parameters are frozen: one may stand in them by its value, and other ranks
    have other values.
    """
    if site.cache_root is None:
        return Made(private=private, prefix="", kept=())
    kept = [(engine_directory(site.cache_root, STATIC_KERNELS), PACKAGES)]
    if not site.config.experimental_config.frozen_parameter:
        kept.append((engine_directory(site.cache_root, GE), GRAPHS))
    return Made(private=private, prefix=site.digest[:_PREFIX_CHARS], kept=tuple(kept))


def _end(made: Made) -> None:
    if settings().local_rank == 0:
        made.hand_over()
