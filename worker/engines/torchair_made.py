"""What TorchAir makes at run time beside its cache file, in minutes: for the next process of this node.

Static-kernel packages and GE's graphs lie in a function's private directory, which ends with its process.
The node keeps them under the artifact's digest (`worker.engine_files`): another one is never offered them.

GE compiles for the storage formats that the weights have (``torch_npu.get_npu_format``), which are no
condition of the artifact: TorchAir's code is the same for all. So they stand in the prefix as well. They are
looked at when the artifact is loaded and again before its first call, in which GE compiles.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.digests import digest_bytes
from warmrank.worker.device_kinds import kind_of
from warmrank.worker.engine_files import GRAPHS, PACKAGES, PREFIX_CHARS, bring_in, hand_over
from warmrank.worker.engines import Site
from warmrank.worker.known_caches import GE, STATIC_KERNELS, engine_directory
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from torch import nn

_log = logging.getLogger(__name__)

_FORMATS_CHARS = 16


class Made:
    """The private directory of one loaded artifact, and where the node keeps what is made there.

    Args:
        private: the directory of TorchAir's file.
        artifact: its digest.
        kept: directories of node caches, each with the files that belong there; nothing is kept without.
        module: the function's; it is not kept alive.
    """

    __slots__ = ("_artifact", "_brought", "_formats", "_kept", "_module", "private")

    def __init__(
        self, private: Path, artifact: str, kept: tuple[tuple[Path, tuple[str, ...]], ...], module: nn.Module
    ) -> None:
        self.private = private
        self._artifact = artifact[:PREFIX_CHARS]
        self._kept = kept
        self._module = weakref.ref(module)
        self._formats = formats_of(module) if kept else ""
        self._brought: tuple[str, ...] = ()

    def bring_in(self) -> None:
        """Put what this node has of the artifact beside TorchAir's file, before anything is called."""
        for directory, patterns in self._kept:
            self._brought += bring_in(directory, self._prefix, self.private, patterns)

    def before_first_call(self) -> None:
        """Exchange what was brought in, if it is for other storage formats than the weights have by now."""
        if self._is_current():
            return
        for path in self._brought:
            (self.private / path).unlink(missing_ok=True)
        module = self._module()
        self._brought, self._formats = (), formats_of(module) if module is not None else ""
        self.bring_in()

    def hand_over(self) -> None:
        """Let the node keep what TorchAir made so far."""
        if not self._is_current():
            _log.warning("%s: weights changed their storage format, so nothing is kept", self.private)
            return
        for directory, patterns in self._kept:
            hand_over(self.private, directory, self._prefix, patterns)

    def end(self) -> None:
        """Hand over for the last time, on the node's first rank: a script has nobody who asks for it."""
        if settings().local_rank == 0:
            self.hand_over()

    @property
    def _prefix(self) -> str:
        return f"{self._artifact}/{self._formats}"

    def _is_current(self) -> bool:
        module = self._module()
        return not self._kept or module is None or formats_of(module) == self._formats


def made_of(site: Site, private: Path) -> Made:
    """What becomes of the files that TorchAir makes of a function.

    GE's graphs are not kept where parameters are frozen: one may stand in them by its value, and other ranks
    have other values.
    """
    kept = []
    if site.cache_root is not None:
        kept.append((engine_directory(site.cache_root, STATIC_KERNELS), PACKAGES))
        if not site.config.experimental_config.frozen_parameter:
            kept.append((engine_directory(site.cache_root, GE), GRAPHS))
    return Made(private, site.digest, tuple(kept), site.method.__self__)  # type: ignore[arg-type]


def formats_of(module: nn.Module) -> str:
    """A digest of the storage formats of a module's tensors on NPUs, by name."""
    format_of = importlib.import_module("torch_npu").get_npu_format
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    lines = [
        f"{name} {format_of(tensor)}\n" for name, tensor in named if kind_of(tensor.device.type) == "npu"
    ]
    return digest_bytes("".join(sorted(lines)).encode()).sha256[:_FORMATS_CHARS]
