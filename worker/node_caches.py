"""Node caches: directories in which tools keep what they compiled, as a config declares them.

What is new or changed in them after a launch belongs to the node (`worker.node_collecting`); what came from
the store is put there (`cache_store.cache_dir.placing`). Known without a config are those of engine
torchair's tools (`worker.engine_files`), and where CANN keeps its compiled operators.

Facts relied on:

* GE keeps graphs as ``<graph key>_<time>.om`` beside ``<graph key>.idx``, and names without a directory in
  the latter are looked up beside it (``ModelCache`` in ``compiler/graph/build/model_cache.cc`` of hicann/ge);
  with ``ge_cache=True`` TorchAir sets ``ge.graph_compiler_cache_dir`` to the directory of ``compiled_module``
  (``torchair/inference/_cache_compiler.py``). GE takes whatever graph has the key, so a cache must never be
  offered to another function than the one that made it: engine torchair names the directory, no config.
* ``op_compiler`` makes packages of static kernels, ``static_kernel_<time>_<pid>.run``, in
  ``<directory of compiled_module>/{aclnn_static_shape_kernel,static_kernel_compile}_outputs/ts..._outputs/``
  (the first for torchair, the second for npugraph_ex; ``static_kernel.py`` of both in torch_npu 2.13.0). A
  load looks there, and local rank 0 runs the packages of the first such directory that has any.
* CANN's compiled operators lie in ``kernel_cache`` (and ``fuzzy_kernel_cache``) below
  ``ACL_OP_COMPILER_CACHE_DIR``, else ``ASCEND_CACHE_PATH``, else ``~/atc_data``; all devices of one server
  share them, and servers only where model of the NPU, firmware, driver and CANN are equal, which the
  environment of a launch makes sure of
  (https://www.hiascend.com/document/detail/en/canncommercial/850/maintenref/envvar/envref_07_0006.html,
  https://hiascend.com/document/detail/zh/Pytorch/600/apiref/Envvariables/Envir_026.html).
  An installation of CANN removes those below ``~/atc_data``
  (``--op_compiler_cache_dir`` in CANN's documentation of ATC).
* ``ASCEND_WORK_PATH`` has logs, dumps and ``kernel_meta``, a compile's files for people: CANN's document says
  that they are one machine's own
  (https://www.hiascend.com/document/detail/en/canncommercial/800/apiref/envvar/envref_07_0007.html).
* Triton's ``__grp__*.json`` name files by absolute path, so its cache is none: `cache_store.sync` moves it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.cache_dir.placing import Destination
from warmrank.cache_store.digests import Digest
from warmrank.worker.settings import Settings, expanded
from warmrank.worker.values import Value

STATIC_KERNELS = "static_kernels"
GE = "ge"
OPERATORS = "operators"
OWN = (STATIC_KERNELS, GE)
"""The node caches that engine torchair fills, below the cache directory, where it looks for them."""
_OWN_DIRECTORY = "node_caches"
ARTIFACT_CHARS = 32
"""How much of an artifact's digest names its directory there."""


class NodeCache(Value):
    """A node cache of this node.

    Attributes:
        name: its name.
        directory: where it lies on this node.
        patterns: which files below it belong to it; a ``*`` stands for slashes too.
        collect: ``new``: what a launch adds or changes; ``all``: also what was there before; ``none``.
        in_sets: engine torchair fills it with an archive for each artifact (`worker.engine_files`).
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


def own(name: str, cache_dir: Path, *, collect: str = "all") -> NodeCache:
    """A node cache that engine torchair fills; what scripts and failed launches made there counts too."""
    directory = str(engine_directory(cache_dir, name))
    return NodeCache(
        name=name,
        directory=directory,
        patterns=("*.tar",),
        collect="none" if collect == "none" else "all",
        in_sets=True,
    )


def operators(settings: Settings) -> NodeCache:
    """Where CANN keeps compiled operators, of all jobs of this user: only a config that names it has it."""
    named = settings.op_compiler_cache or settings.ascend.get("ASCEND_CACHE_PATH") or "~/atc_data"
    patterns = ("kernel_cache*/*", "fuzzy_kernel_cache*/*")
    return NodeCache(name=OPERATORS, directory=expanded(named), patterns=patterns)


def engine_directory(cache_dir: Path, name: str) -> Path:
    """Where what engine torchair's tools made waits for a launch to collect it; see `worker.engine_files`."""
    return cache_dir / _OWN_DIRECTORY / name


def archive_name(digest: Digest) -> str:
    """Name of an engine's archive with this digest."""
    return f"{digest.sha256[:ARTIFACT_CHARS]}.tar"
