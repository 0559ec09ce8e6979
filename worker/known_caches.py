"""The node caches whose places are known: those of engine torchair's tools, and CANN's compiled operators.

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

from pathlib import Path

from warmrank.worker.node_caches import NodeCache
from warmrank.worker.settings import Settings, expanded

STATIC_KERNELS = "static_kernels"
GE = "ge"
OPERATORS = "operators"
OWN = (STATIC_KERNELS, GE)
"""The node caches that engine torchair fills, below the cache directory, where it looks for them."""
_OWN_PATTERNS = {STATIC_KERNELS: ("*.run",), GE: ("*.om", "*.idx", "*.rdcpkt", "*/weight/*")}
_OWN_DIRECTORY = "node_caches"


def own(name: str, cache_dir: Path, *, collect: str = "all") -> NodeCache:
    """A node cache that engine torchair fills; what scripts and failed launches made there counts too."""
    directory = str(engine_directory(cache_dir, name))
    return NodeCache(
        name=name,
        directory=directory,
        patterns=_OWN_PATTERNS[name],
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
