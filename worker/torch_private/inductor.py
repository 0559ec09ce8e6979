"""Inductor: one graph to one shared library. Never imported by a warm load that has its library.

Facts relied upon (tested in ``tests/unit/test_inductor.py``; what becomes of compiled kernels, in
``tests/integration/test_max_autotune.py``):

* ``compile_fx_aot`` within a tracing context uses that context's ``ShapeEnv``, so the conditions it puts on
  symbolic sizes are guards of the trace; it takes no symbolic integer as an input.
* With ``aot_inductor.package`` it returns the paths of what it made, one of them the ``.so``; with
  ``model_name_for_generated_files`` no name depends on a hash.
* ``cpp.threads`` is the number of OpenMP threads in the code, and decides which loops are worth splitting.
* Operators that have no C interface are called by name; ``<stem>.json`` beside the library lists them.
* ``TORCHINDUCTOR_CACHE_DIR`` is read at each use, so it is set for the length of a compile: one at a time.
* ``torch.__config__``-like settings that change code come from environment variables read at import; those
  that matter are set here, so that equal graphs give equal bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.errors import NotPortable, NotYet

if TYPE_CHECKING:
    from torch.fx import GraphModule

FACTS = {
    "torch._dynamo.exc": "TorchDynamoException",
    "torch._inductor.config": "get_config_copy patch",
    "torch._inductor.compile_fx": "compile_fx_aot",
    "torch._inductor.exc": "InductorError",
}

_NAME = "graph"
LIBRARY, NODES = "graph.so", "graph.json"
# Without these a library does the same: it is larger, or takes longer to make.
_OPTIONAL = frozenset({"aot_inductor.enable_line_tables", "aot_inductor.precompile_headers"})
_ENVIRONMENT = threading.Lock()


def _settings(directory: Path, march: str | None, compiler: str) -> dict[str, Any]:
    patches: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.output_path": str(directory),
        "aot_inductor.model_name_for_generated_files": _NAME,
        "aot_inductor.metadata": {},
        # Tables of lines are three quarters of a library, and name paths.
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.precompile_headers": True,
        "aot_inductor.embed_kernel_binary": True if torch.cuda.is_available() else None,
        # The number of the key. With `dynamic_threads` each kernel, however small, would wake all threads.
        "cpp.threads": torch.get_num_threads(),
        "cpp.dynamic_threads": False,
        "cpp.simdlen": None,
        "cpp.march": march,
        "cpp.cxx": (None, compiler),
        # Autotuning picks kernels by their times, so equal graphs would give different bytes.
        "max_autotune": False,
        "max_autotune_gemm": False,
        "freezing": False,
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "compile_threads": 1,
        "keep_output_stride": True,
        "fallback_random": False,
    }
    from torch._inductor import config

    return known_settings(patches, config.get_config_copy())


def known_settings(patches: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What Inductor knows of ``patches``; only what changes no results may be unknown.

    Raises:
        NotYet: a setting that decides what is compiled is unknown to this torch.
    """
    unknown = sorted(patches.keys() - set(known) - _OPTIONAL)
    if unknown:
        feature = (
            f"mode max-autotune with torch {torch.__version__}, whose Inductor has no {', '.join(unknown)}"
        )
        raise NotYet(feature, instead="use mode reduce-overhead, or a torch release that has it")
    return {name: value for name, value in patches.items() if name in known}


def compile_library(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    directory: Path,
    cache: Path,
    march: str | None,
    compiler: str,
) -> dict[str, bytes]:
    """The shared library of a graph, ``graph.so``, and what it reads when opened, by file name.

    Args:
        graph: ATen operators over tensors; may write to its inputs.
        inputs: fake tensors.
        directory: where the compiler writes; its path is part of the bytes, so use the same one always.
        cache: where Inductor keeps precompiled headers.
        march: what the C++ compiler may use of the processor; None leaves it to Inductor.
        compiler: the C++ compiler.

    Raises:
        NotPortable: Inductor cannot compile it.
        NotYet: this torch's Inductor lacks a setting that it needs.
    """
    with warnings.catch_warnings():
        # Inductor's own, some at its import; of no use to who calls a cached function.
        warnings.simplefilter("ignore")
        made = _made(graph, inputs, cache, _settings(directory, march, compiler))
    files = {Path(str(item)).name: Path(str(item)) for item in made}
    needed = {
        LIBRARY: files.pop(f"{_NAME}.wrapper.so", None),
        NODES: files.pop(f"{_NAME}.wrapper.json", None),
    }
    others = sorted(name for name in files if not name.endswith((".cpp", "_metadata.json")))
    if needed[LIBRARY] is None or others:
        made_instead = ", ".join(others) or "no library"
        msg = f"Inductor made {made_instead}; a library that needs nothing else was expected"
        raise NotPortable(msg, what="inductor", made=others)
    return {name: path.read_bytes() for name, path in needed.items() if path is not None}


def _made(graph: GraphModule, inputs: Sequence[Any], cache: Path, settings: dict[str, Any]) -> Any:
    """Paths of the files that Inductor makes of a graph."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_aot
    from torch._inductor.exc import InductorError

    with _environment({"TORCHINDUCTOR_CACHE_DIR": str(cache)}), config.patch(settings), torch.no_grad():
        try:
            return compile_fx_aot(graph, list(inputs))
        except (
            InductorError, TorchDynamoException, RuntimeError, AssertionError, NotImplementedError
        ) as error:  # fmt: skip
            reason = str(error).strip() or repr(error)
            msg = (
                f"Inductor cannot compile the graph ahead of time: {type(error).__name__}: {reason[:2000]}\n"
                'Use mode "reduce-overhead" (engine graph) for this function.'
            )
            raise NotPortable(msg, what="inductor", reason=reason) from error


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of the process; two at once would put back what the other set."""
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
