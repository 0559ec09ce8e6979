"""The node caches of Ascend's tools, which need no config.

Facts relied on:

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
* Triton, and triton-ascend, which is made of it, keeps kernels in ``TRITON_CACHE_DIR``, else
  ``.triton/cache`` below ``TRITON_HOME`` or the home directory. ``__grp__*.json`` there names a kernel's
  files by absolute path, and passes those over that do not exist: on a node with another home these kernels
  are compiled again.
* GE keeps graphs as ``<graph key>_<time>.om`` beside ``<graph key>.idx``, and names without a directory in
  the latter are looked up beside it (``ModelCache`` in ``compiler/graph/build/model_cache.cc`` of hicann/ge);
  with ``ge_cache=True`` TorchAir sets ``ge.graph_compiler_cache_dir`` to the directory of ``compiled_module``
  (``torchair/inference/_cache_compiler.py``). GE takes whatever graph has the key, so a cache must never be
  offered to another function than the one that made it: engine torchair names the directory, no config.
* Static kernels: see `worker.static_kernels`.
"""

from __future__ import annotations

from pathlib import Path

from worker.node_caches import NodeCache, expanded
from worker.settings import Settings

STATIC_KERNELS = "static_kernels"
GE = "ge"
OPERATORS = "operators"
TRITON = "triton"


def known(settings: Settings, device_kind: str, cache_dir: Path) -> tuple[NodeCache, ...]:
    """The node caches of this node that need no config: of Ascend's tools on npu, none elsewhere.

    Those that engine torchair fills lie below the cache directory, where the engine looks for them.
    """
    if device_kind != "npu":
        return ()
    operators = settings.op_compiler_cache or settings.ascend.get("ASCEND_CACHE_PATH") or "~/atc_data"
    return (
        NodeCache(
            name=OPERATORS,
            directory=expanded(operators),
            patterns=("kernel_cache*/*", "fuzzy_kernel_cache*/*"),
        ),
        NodeCache(name=TRITON, directory=expanded(settings.triton_cache or "~/.triton/cache")),
        NodeCache(
            name=STATIC_KERNELS,
            directory=str(engine_directory(cache_dir, STATIC_KERNELS)),
            patterns=("*.run",),
        ),
        NodeCache(
            name=GE,
            directory=str(engine_directory(cache_dir, GE)),
            patterns=("*.om", "*.idx", "*.rdcpkt", "*/weight/*"),
        ),
    )


def engine_directory(cache_dir: Path, name: str) -> Path:
    """Where what engine torchair's tools made waits for a launch to collect it; see `worker.engine_files`."""
    return cache_dir / "node_caches" / name
