"""The places of vLLM that the plugin hooks: loads of artifacts and graphs, ends of workers' starts, metrics.

`vllm.compilation.decorators._try_load_aot_compiled_fn` is called with the path of the one artifact that vLLM
looks for, in the process that will run it, before anything is compiled. For vllm-ascend's graphs
`vllm.compilation.backends.VllmBackend.__call__` asks its `CompilerManager` for a directory of graphs, loads
those in its index, compiles the others, and saves the index; in between, the directory is had from the store.
What is on this disk is checked, and what is not there fetched. Whatever fails here is one line in the log,
and vLLM goes on as without.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmrank.cache_store.cache_dir.marks import check_marks
from warmrank.cache_store.errors import NoStoreYet, NotInStore, RefusedCache, StoreError
from warmrank.orchestrator.stores import load, open_to_fetch
from warmrank.orchestrator.vllm_plugin.entries import (
    NO_STORE,
    Access,
    Entry,
    Outcome,
    Publisher,
    access,
    artifact_entry,
    bounded,
    discard,
    files_digest,
    graphs_entry,
    node_lock,
    note_published,
    read_components,
    read_outcomes,
    set_aside,
)
from warmrank.orchestrator.vllm_plugin.factors import (
    COMPILER,
    OPERATORS,
    components,
    differences,
    graph_components,
)

logger = logging.getLogger("vllm.warmrank")

_WARM_UP = "compile_or_warm_up_model"
_NOT_LOADED = "vLLM could not load the artifact that was there"
_GRAPHS = "a part of vllm-ascend's graphs"


def install() -> None:
    """Hook vLLM in this process; a second call changes nothing.

    Raises:
        AttributeError, ImportError: this vLLM has not what is hooked.
        BadArgument, StoreError: the settings cannot be used.
    """
    from prometheus_client import REGISTRY
    from vllm import envs
    from vllm.compilation import decorators
    from vllm.compilation.backends import VllmBackend
    from vllm.compilation.caching import aot_compile_hash_factors  # noqa: F401 - `factors` needs it
    from vllm.compilation.counter import compilation_counter
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = decorators._try_load_aot_compiled_fn  # noqa: SLF001 - vLLM has no public hook
    if hasattr(original, "warmrank") or envs.VLLM_DISABLE_COMPILE_CACHE:
        return
    opened = access()
    publisher = Publisher(opened)
    decorators._try_load_aot_compiled_fn = Loader(opened, publisher, original)  # noqa: SLF001
    _hook_warm_up(WorkerWrapperBase, publisher)
    hook_graphs(VllmBackend, opened, publisher, compilation_counter)
    REGISTRY.register(OutcomeCollector(Path(envs.VLLM_CACHE_ROOT), time.time()))


def _hook_warm_up(wrapper: Any, publisher: Publisher) -> None:
    """Tell the publisher when a worker's start is over, whatever class of worker it is."""
    original = wrapper.__getattr__

    def getattr_(self: Any, name: str) -> Any:
        found = original(self, name)
        if name != _WARM_UP:
            return found

        def warm_up(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            publisher.is_warm.set()
            return result

        return warm_up

    wrapper.__getattr__ = getattr_


class Loader:
    """Takes the place of vLLM's function that loads an artifact, ``original``."""

    warmrank = True

    def __init__(self, opened: Access, publisher: Publisher, original: Callable[..., Any]) -> None:
        self._access, self._publisher, self._original = opened, publisher, original
        self._visited: set[Path] = set()

    def __call__(self, model: Any, aot_compilation_path: str) -> Any:
        """As vLLM's: the loaded function, or None."""
        path = Path(aot_compilation_path)
        if path in self._visited:  # another layer of the same class
            return self._original(model, aot_compilation_path)
        self._visited.add(path)
        entry = artifact_entry(path)
        visit = visit_entry(
            self._access, entry, model.vllm_config, lambda: components(model, entry.rank, entry.top.name)
        )
        if visit is None:
            return self._original(model, aot_compilation_path)
        loaded = self._original(model, aot_compilation_path) if visit.may_load else None
        with _harmless(entry.rank):
            if loaded is None:
                self._note_compile(visit, model)
            else:
                seconds = float(getattr(model.vllm_config.compilation_config, "compilation_time", 0.0))
                self._publisher.take(entry, visit.outcome.end(is_loaded=True, compile_s=seconds))
        return loaded

    def _note_compile(self, visit: Visit, model: Any) -> None:
        """Take over what vLLM compiles now, as soon as it saves it."""
        save, started_s = model.save_aot_compiled_function, time.monotonic()

        def save_and_note() -> None:
            save()
            with _harmless(visit.entry.rank):
                del model.save_aot_compiled_function  # of the instance; its class's stays
                seconds = time.monotonic() - started_s
                outcome = visit.outcome.end(is_loaded=False, compile_s=seconds, why=_NOT_LOADED)
                self._publisher.take(visit.entry, outcome, visit.components)

        model.save_aot_compiled_function = save_and_note


FAMILIES = {
    "warmrank_vllm_artifact": "1 for each rank's artifact, by its outcome and source.",
    "warmrank_vllm_compile_seconds": "Seconds of torch.compile, loads included.",
    "warmrank_vllm_fetch_seconds": "Seconds that vLLM waited for the store.",
    "warmrank_vllm_fetched_bytes": "Bytes copied from the store.",
}


class OutcomeCollector:
    """Reads the outcomes below a ``VLLM_CACHE_ROOT`` of starts that began no earlier than this process."""

    def __init__(self, root: Path, since_s: float) -> None:
        self._root = root
        self._since_s = since_s

    def collect(self) -> Iterator[Any]:
        """See `prometheus_client.registry.Collector`."""
        from prometheus_client.core import GaugeMetricFamily

        names = ("entry", "rank", "outcome", "source")
        gauges = [GaugeMetricFamily(name, text, labels=names) for name, text in FAMILIES.items()]
        for one in read_outcomes(self._root, since_s=self._since_s):
            labels = (one.entry[:12], one.rank, one.outcome, one.source)
            values = (1.0, one.compile_s, one.fetch_s, float(one.fetched_bytes))
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric(labels, value)
        yield from gauges


@dataclass(slots=True, kw_only=True)
class Visit:
    """State of one artifact while vLLM looks for it."""

    entry: Entry  # the artifact's place
    outcome: Outcome  # so far; its source is where the artifact came from, if it is there
    components: dict[str, str] = field(default_factory=dict)  # what it depends on
    may_load: bool = True  # vLLM may load what is there
    is_over: bool = False  # vLLM does not wait any more


def visit_entry(
    opened: Access, entry: Entry, config: Any, components: Callable[[], dict[str, str]]
) -> Visit | None:
    """Have the artifact there if the store has it; None where the plugin cannot serve this vLLM.

    ``config`` is vLLM's; ``components`` gives what the entry depends on.
    """
    model = str(getattr(config.model_config, "model", ""))
    outcome = Outcome(entry=entry.top.name, rank=entry.rank, model=model)
    visit = Visit(entry=entry, outcome=outcome)
    started_s = time.monotonic()
    with _harmless(entry.rank):
        try:
            visit.components = components()
            _drop_another(visit)
            bounded(lambda: _prepare(opened, visit), opened.timeout_s)
        except (StoreError, TimeoutError, OSError) as error:
            visit.outcome.explain(f"{NO_STORE}: {error}")
        visit.is_over = True
        visit.outcome.fetch_s = time.monotonic() - started_s
        _drop_another(visit)
        return visit
    return None


@contextlib.contextmanager
def _harmless(what: str) -> Iterator[None]:
    """Log what goes wrong: vLLM has to start whatever happens here."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as it says
        logger.warning("warmrank: %s is not served: %s: %s", what, type(error).__name__, error)


def _drop_another(visit: Visit) -> None:
    """Remove an artifact from this disk that was compiled for something else, or nobody knows for what.

    vLLM's own hash says enough of what was compiled without the plugin; vllm-ascend's does not.
    """
    if not visit.entry.artifact.exists():
        return
    stored = read_components(visit.entry.artifact)
    changes = differences(stored, visit.components) if stored else ""
    if changes:
        visit.outcome.explain(f"the artifact on this disk is another one: {changes}")
    elif not stored and OPERATORS in visit.components:
        visit.outcome.explain(
            "the artifact on this disk is of unknown custom operators, made without the plugin"
        )
    else:
        return
    try:
        discard(visit.entry)
    except OSError:
        visit.may_load = False


def _prepare(opened: Access, visit: Visit) -> None:
    entry = visit.entry
    with node_lock(entry, timeout_s=opened.timeout_s):
        if visit.is_over:
            return
        trust = load(opened.config, to_sign=False)
        try:
            check_marks(entry.root, trust.policy, trust.revoked)
        except RefusedCache as refusal:
            logger.warning("warmrank: %s; moved to %s", refusal, set_aside(entry))
        if entry.artifact.exists():
            return
        try:
            store = open_to_fetch(opened.config)
            report = store.pull_directory(entry.tool, entry.root, visit.components)
        except NoStoreYet:
            visit.outcome.explain("there is no store yet")
            return
        except NotInStore as miss:
            visit.outcome.explain(f"the store has no such entry: {miss.remedy}")
            return
        visit.outcome.source, visit.outcome.fetched_bytes = "store", report.bytes_copied
        note_published(entry, files_digest(entry.root))


def hook_graphs(backend: Any, opened: Access, publisher: Publisher, counter: Any) -> None:
    """Serve the graphs that the class `VllmBackend` compiles by `AscendCompiler`; ``counter`` is vLLM's."""
    original = backend.__call__

    @functools.wraps(original)
    def call(self: Any, graph: Any, example_inputs: Any) -> Any:
        compiler = getattr(getattr(self, "compiler_manager", None), "compiler", None)
        if getattr(compiler, "name", "") != COMPILER:
            return original(self, graph, example_inputs)
        lookup = _Lookup(self, graph, opened, counter)
        result = original(self, graph, example_inputs)
        with _harmless(_GRAPHS):
            lookup.end(publisher)
        return result

    backend.__call__ = call


class _Lookup:
    """One call of a `VllmBackend` for a part of the model, until its directory is known and looked for."""

    def __init__(self, backend: Any, graph: Any, opened: Access, counter: Any) -> None:
        self._backend, self._graph, self._access, self._counter = backend, graph, opened, counter
        self._visit: Visit | None = None
        self._started_s = time.monotonic()
        with _harmless(_GRAPHS):
            self._num_before = counter.num_backend_compilations, counter.num_cache_entries_updated
            config = backend.vllm_config.compilation_config
            # Both are replaced before the directory is asked for.
            self._is_derived, self._traced = not config.cache_dir, sorted(config.traced_files)
            self._original: Callable[..., None] = backend.compiler_manager.initialize_cache
            backend.compiler_manager.initialize_cache = self._initialize

    def _initialize(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        """As vLLM's, which reads the index."""
        if not disable_cache:
            with _harmless(_GRAPHS):
                config = self._backend.vllm_config
                entry = graphs_entry(Path(cache_dir), Path(config.compilation_config.cache_dir))
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

    def end(self, publisher: Publisher) -> None:
        """Take note of what vLLM made of the directory; ``publisher`` takes what was compiled."""
        num_asked = self._counter.num_backend_compilations - self._num_before[0]
        num_compiled = self._counter.num_cache_entries_updated - self._num_before[1]
        if (visit := self._visit) is None or not num_asked:
            return
        seconds = time.monotonic() - self._started_s - visit.outcome.fetch_s
        if num_compiled:
            why = f"{num_compiled} of {num_asked} graphs were not in the entry"
            outcome = visit.outcome.end(is_loaded=False, compile_s=seconds, why=why)
            publisher.take(visit.entry, outcome, visit.components)
            return
        index = ast.literal_eval(visit.entry.artifact.read_text())
        num_absent = sum(not Path(value["graph_handle"][1]).exists() for value in index.values())
        why = f"{num_absent} of {num_asked} graphs compiled: vllm-ascend saves none with Triton kernels"
        outcome = visit.outcome.end(is_loaded=True, compile_s=seconds, why=why if num_absent else "")
        publisher.take(visit.entry, outcome)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
