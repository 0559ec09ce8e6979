"""Node caches: directories in which tools keep what they compiled, as a config declares them.

What is new or changed in them after a launch belongs to the node (`worker.node_collecting`); what came from
the store is put there (`cache_store.cache_dir.node_files`).

Known without a config: static kernels and GE's graphs that engine torchair's tools make beside
``compiled_module``, and CANN's compiled operators. The former lie in a private directory that lasts as long
as its process: `KernelFiles` packs them into one archive in a node cache, and unpacks it where a later
process of the same artifact looks for them. No NPU has seen any of this. An archive is whole or absent::

    <node cache>/<artifact>/<storage formats>.tar    SHA-256 of the rest as hex, a newline, a tar file

Facts:

* GE keeps graphs as ``<graph key>_<time>.om`` beside ``<graph key>.idx``, and looks names without a directory
  up beside the latter (``ModelCache`` in ``compiler/graph/build/model_cache.cc`` of hicann/ge), so an index
  fits its own graphs only; TorchAir's ``ge_cache=True`` names the directory of ``compiled_module``. GE takes
  any graph with the key, so an archive is offered to its own artifact only, and for the storage formats that
  the weights have (``torch_npu.get_npu_format``), which are no condition of the artifact.
* ``op_compiler`` makes packages of static kernels, ``static_kernel_<time>_<pid>.run``, in `PACKAGES`
  (``static_kernel.py`` of torchair and npugraph_ex, torch_npu 2.13.0). A load looks there, and local rank 0
  runs the packages of the first such directory that has any.
* CANN's compiled operators lie in ``kernel_cache`` (and ``fuzzy_kernel_cache``) below
  ``ACL_OP_COMPILER_CACHE_DIR``, else ``ASCEND_CACHE_PATH``, else ``~/atc_data``; servers share them where
  model of the NPU, firmware, driver and CANN are equal, as the environment of a launch makes sure of
  (https://www.hiascend.com/document/detail/en/canncommercial/850/maintenref/envvar/envref_07_0006.html).
* ``ASCEND_WORK_PATH`` is one machine's own. Triton's ``__grp__*.json`` name files by absolute path, so its
  cache is none: `cache_store.sync` moves it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import shutil
import tarfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir import private_files
from warmrank.cache_store.cache_dir.node_files import Collect, NodeCache, is_reserved
from warmrank.cache_store.digests import digest_bytes, digest_stream
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.paths import path_fault
from warmrank.worker.settings import Settings, expanded, kind_of, settings

if TYPE_CHECKING:
    from torch import nn

    from warmrank.worker.engines import Site

_log = logging.getLogger(__name__)
STATIC_KERNELS, GE, OPERATORS = "static_kernels", "ge", "operators"
OWN = (STATIC_KERNELS, GE)  # those that engine torchair fills, below the cache directory
ARTIFACT_CHARS = 32  # of an artifact's digest, which name its directory there
# Where torchair and npugraph_ex leave packages of static kernels beside ``compiled_module``; GE's graphs.
PACKAGES: tuple[str, ...] = (
    "aclnn_static_shape_kernel_outputs/ts*_outputs/*.run",
    "static_kernel_compile_outputs/ts*_outputs/*.run",
)
GRAPHS: tuple[str, ...] = ("*.om", "*.idx", "*.rdcpkt", "weight/*")
_FORMATS_CHARS = 16
_TEMPORARY = ".warmrank-"
_HEADER_BYTES = 65


def engine_directory(cache_dir: Path, name: str) -> Path:
    """Directory in which products of engine torchair's tools wait for a launch to collect them."""
    return cache_dir / "node_caches" / name


def own(name: str, cache_dir: Path, *, collect: Collect = "all") -> NodeCache:
    """A node cache that engine torchair fills; what scripts and failed launches made there counts too."""
    collect, directory = "none" if collect == "none" else "all", str(engine_directory(cache_dir, name))
    return NodeCache(name=name, directory=directory, patterns=("*.tar",), collect=collect)


def operators(settings: Settings) -> NodeCache:
    """CANN's cache of compiled operators, of all jobs of this user: only a config that names it has it."""
    named = settings.op_compiler_cache or settings.ascend.get("ASCEND_CACHE_PATH") or "~/atc_data"
    patterns = ("kernel_cache*/*", "fuzzy_kernel_cache*/*")
    return NodeCache(name=OPERATORS, directory=expanded(named), patterns=patterns)


def place_faults(caches: Sequence[NodeCache], cache_dir: Path) -> dict[str, str]:
    """Reasons why node caches cannot lie where they are declared, by their names."""
    root = os.path.realpath(cache_dir)
    places = {name: os.path.realpath(engine_directory(cache_dir, name)) for name in OWN}
    places |= {cache.name: os.path.realpath(cache.directory) for cache in caches}
    below = f"{os.path.realpath(engine_directory(cache_dir, ''))}{os.sep}"
    faults: dict[str, str] = {}
    for cache in caches:
        place = places[cache.name]
        others = [name for name, other in places.items() if name != cache.name and _overlap(place, other)]
        if not os.path.isabs(cache.directory):  # noqa: PTH117 - of text
            faults[cache.name] = "is not absolute, or names a home or a variable that is not there"
        elif place == os.sep:
            faults[cache.name] = "is the root of the file system"
        elif _overlap(place, root) and not place.startswith(below):
            faults[cache.name] = f"overlaps with the cache directory {cache_dir}, outside of its node_caches/"
        elif others:
            faults[cache.name] = f"overlaps with that of node cache {others[0]!r}"
    return faults


def _overlap(one: str, other: str) -> bool:
    """True if two directories are one, or one lies within the other."""
    first, second = (f"{path.rstrip(os.sep)}{os.sep}" for path in (one, other))
    return first.startswith(second) or second.startswith(first)


class KernelFiles:
    """Files that TorchAir and GE make beside ``compiled_module`` for one loaded artifact.

    GE's graphs are not kept where parameters are frozen: one may stand in them by its value, and other ranks
    have other values.

    Args:
        private: the directory of ``compiled_module``.
        site: the function; its module is not kept alive.
    """

    def __init__(self, private: Path, site: Site) -> None:
        self.private = private
        self._artifact = site.digest[:ARTIFACT_CHARS]
        self._module: weakref.ref[nn.Module] = weakref.ref(site.method.__self__)  # type: ignore[arg-type]
        self._formats = ""
        self._kept: dict[Path, tuple[str, ...]] = {}
        if site.cache_root is not None:
            self._kept[engine_directory(site.cache_root, STATIC_KERNELS)] = PACKAGES
            if not site.config.experimental_config.frozen_parameter:
                self._kept[engine_directory(site.cache_root, GE)] = GRAPHS

    def bring_in(self) -> None:
        """Before the first call: put what this node has of the artifact where the tools look for it."""
        module = self._module()
        if self._kept and module is not None:
            self._formats = _formats_of(module)
            for node_cache in self._kept:
                unpack(self._archive(node_cache), self.private)

    def hand_over(self) -> None:
        """Let the node keep what the tools made so far."""
        module = self._module()
        if self._formats and module is not None and _formats_of(module) != self._formats:
            _log.warning("%s: weights changed their storage format, so nothing is kept", self.private)
        elif self._formats:
            for node_cache, patterns in self._kept.items():
                pack(self.private, self._archive(node_cache), patterns)

    def end(self) -> None:
        """Hand over for the last time, on the node's first rank: a script has nobody who asks for it."""
        if settings().local_rank == 0:
            self.hand_over()

    def _archive(self, node_cache: Path) -> Path:
        return node_cache / self._artifact / f"{self._formats}.tar"


def _formats_of(module: nn.Module) -> str:
    """A digest of the storage formats of a module's tensors on NPUs, by name."""
    format_of = importlib.import_module("torch_npu").get_npu_format
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    lines = [f"{name} {format_of(value)}\n" for name, value in named if kind_of(value.device.type) == "npu"]
    return digest_bytes("".join(sorted(lines)).encode()).sha256[:_FORMATS_CHARS]


def pack(private: Path, target: Path, patterns: Sequence[str]) -> None:
    """Put the files of these patterns below ``private`` into the archive ``target``, in place of its own."""
    members = _members(private, patterns)
    if not members:
        return
    temporary = target.parent / f"{_TEMPORARY}{private_files.temporary_name()}"
    try:
        with private_files.os_errors_are_unusable("file", target):
            private_files.make_private_directories(target.parent)
            with private_files.create_private(temporary) as file:
                file.write(bytes(_HEADER_BYTES))
                with tarfile.open(fileobj=file, mode="w") as archive:
                    for name in members:
                        _add(archive, private / name, name)
            with temporary.open("r+b") as file:
                file.seek(_HEADER_BYTES)
                header = f"{digest_stream(file).sha256}\n".encode()
                file.seek(0)
                file.write(header)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            private_files.sync_directory(target.parent)
    except UnusableCache as error:
        _log.warning("Not kept for the next process, so it is compiled again: %s", error)
    finally:
        temporary.unlink(missing_ok=True)
        private_files.sweep_debris(target.parent, _TEMPORARY)


def unpack(kept: Path, private: Path) -> None:
    """Put the files of an archive, if there is one that is whole, below ``private``."""
    try:
        with private_files.os_errors_are_unusable("file", kept), contextlib.suppress(FileNotFoundError):
            with private_files.open_owned(kept) as file:
                header = file.read(_HEADER_BYTES).decode("ascii", "replace")
                if header != f"{digest_stream(file).sha256}\n":
                    raise OSError("its bytes are not those that its first line says")
                file.seek(_HEADER_BYTES)
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    _extract(archive, private)
            os.utime(kept)  # `drop_unused` goes by it
    except (tarfile.TarError, UnusableCache) as error:
        _log.warning("Not brought in, so it may be compiled again: %s: %s", kept, error)


def drop_unused(node_cache: Path, *, age_s: float) -> None:
    """Remove archives that no process brought in or handed over for long."""
    for path in node_cache.glob("*/*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > age_s:
                private_files.discard_tree(path) if path.is_dir() else path.unlink()
                _log.info("Removed %s, which was not used for long", path)
                path.parent.rmdir()


def _members(private: Path, patterns: Sequence[str]) -> list[str]:
    """Paths below ``private``; of packages those of the newest directory: TorchAir runs one's."""
    paths = sorted({path for pattern in patterns for path in private.glob(pattern) if path.is_file()})
    names = [path.relative_to(private).as_posix() for path in paths]
    usual = [name for name in names if not path_fault(name) and not any(map(is_reserved, name.split("/")))]
    newest = max((name.split("/")[-2] for name in usual if name.endswith(".run")), default="")
    return [name for name in usual if not name.endswith(".run") or name.split("/")[-2] == newest]


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Raises `OSError` where the file is written meanwhile, `UnusableCache` where others could have."""
    with private_files.open_owned(path) as file:
        before = os.fstat(file.fileno())
        entry = tarfile.TarInfo(name)
        entry.size = before.st_size
        archive.addfile(entry, file)
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise OSError(f"{path} was written while it was read")


def _extract(archive: tarfile.TarFile, private: Path) -> None:
    """Write the files of an archive below a directory; none of its names leads out of it."""
    for entry in archive:
        source = archive.extractfile(entry)
        if source is None or path_fault(entry.name):
            raise OSError(f"{entry.name!r} is no file below a directory")
        target = private / entry.name
        private_files.make_private_directories(target.parent)
        with private_files.create_private(target) as writer:
            shutil.copyfileobj(source, writer)
            if target.suffix == ".run":
                os.fchmod(writer.fileno(), 0o700)
