"""The hook of vllm-ascend's graphs: where vLLM hands a part of a model to `AscendCompiler`.

`vllm.compilation.backends.VllmBackend.__call__` asks its `CompilerManager` for a directory of graphs, loads
those in its index, compiles the others, and saves the index. In between, the directory is had from the store.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from warmrank.orchestrator.vllm_plugin.access import Access
from warmrank.orchestrator.vllm_plugin.ascend import COMPILER
from warmrank.orchestrator.vllm_plugin.entries import Entry, Kind
from warmrank.orchestrator.vllm_plugin.factors import graph_components
from warmrank.orchestrator.vllm_plugin.publishing import Publisher
from warmrank.orchestrator.vllm_plugin.visits import Visit, visit_entry

logger = logging.getLogger("vllm.warmrank")


def hook(backend: Any, opened: Access, publisher: Publisher, counter: Any) -> None:
    """Serve the graphs that the class `VllmBackend` compiles by `AscendCompiler`; ``counter`` is vLLM's."""
    original = backend.__call__

    @functools.wraps(original)
    def call(self: Any, graph: Any, example_inputs: Any) -> Any:
        compiler = getattr(getattr(self, "compiler_manager", None), "compiler", None)
        if getattr(compiler, "name", "") != COMPILER:
            return original(self, graph, example_inputs)
        lookup = _Lookup(self, graph, opened, counter)
        result = original(self, graph, example_inputs)
        with _harmless():
            lookup.end(publisher)
        return result

    backend.__call__ = call


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Log what goes wrong: vLLM has to start whatever happens here."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as it says
        logger.warning("warmrank: vllm-ascend's graphs are not served: %s: %s", type(error).__name__, error)


class _Lookup:
    """One call of a `VllmBackend` for a part of the model, until its directory is known and looked for."""

    def __init__(self, backend: Any, graph: Any, opened: Access, counter: Any) -> None:
        self._backend = backend
        self._graph = graph
        self._access = opened
        self._counter = counter
        self._visit: Visit | None = None
        self._started_s = time.monotonic()
        with _harmless():
            self._num_before = self._num_asked_and_compiled()
            config = backend.vllm_config.compilation_config
            # Both are replaced before the directory is asked for.
            self._is_derived, self._traced = not config.cache_dir, sorted(config.traced_files)
            self._original: Callable[..., None] = backend.compiler_manager.initialize_cache
            backend.compiler_manager.initialize_cache = self._initialize

    def _initialize(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        """As vLLM's, which reads the index."""
        if not disable_cache:
            with _harmless():
                config = self._backend.vllm_config
                rank = Path(cache_dir).relative_to(config.compilation_config.cache_dir).as_posix()
                entry = Entry(root=Path(cache_dir), rank=rank, kind=Kind.GRAPHS)
                self._visit = visit_entry(self._access, entry, config, lambda: self._components(entry))
        may_load = self._visit is None or self._visit.may_load
        self._original(cache_dir, disable_cache or not may_load, prefix)

    def _components(self, entry: Entry) -> dict[str, str]:
        config = self._backend.vllm_config
        return graph_components(
            config,
            self._graph,
            entry.rank,
            entry.top.name if self._is_derived else "",
            {path: _text(path) for path in self._traced},
            self._backend.compiler_manager.compute_hash(config),
        )

    def _num_asked_and_compiled(self) -> tuple[int, int]:
        return self._counter.num_backend_compilations, self._counter.num_cache_entries_updated

    def end(self, publisher: Publisher) -> None:
        """Take note of what vLLM made of the directory; ``publisher`` takes what was compiled."""
        visit = self._visit
        if visit is None:
            return
        asked, compiled = self._num_asked_and_compiled()
        num_asked, num_compiled = asked - self._num_before[0], compiled - self._num_before[1]
        if not num_asked:
            return
        seconds = time.monotonic() - self._started_s - visit.fetch_s
        if num_compiled:
            why = f"{num_compiled} of {num_asked} graphs were not in the entry"
            outcome = visit.outcome(is_loaded=False, compile_s=seconds, why=why)
            publisher.compiled(visit.entry, visit.components, outcome)
            return
        index = ast.literal_eval(visit.entry.artifact.read_text())
        num_absent = sum(not Path(value["graph_handle"][1]).exists() for value in index.values())
        why = f"{num_absent} of {num_asked} graphs compiled: vllm-ascend saves none with Triton kernels"
        outcome = visit.outcome(is_loaded=True, compile_s=seconds, why=why if num_absent else "")
        publisher.loaded(visit.entry, outcome)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
